{# No value lies below the minimum. #}
{% test at_least(model, column_name, minimum) %}

select {{ column_name }}
from {{ model }}
where {{ column_name }} < {{ minimum }}

{% endtest %}
