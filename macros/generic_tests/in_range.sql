{# Every value lies between the two ends, which belong to the range. #}
{% test in_range(model, column_name, minimum, maximum) %}

select {{ column_name }}
from {{ model }}
where {{ column_name }} not between {{ minimum }} and {{ maximum }}

{% endtest %}
