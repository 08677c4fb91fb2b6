{# None of the columns is null in any row: one scan for all of them. #}
{% test never_null(model, columns) %}

select {{ columns | join(', ') }}
from {{ model }}
where {% for column in columns %}{{ column }} is null{{ ' or ' if not loop.last }}{% endfor %}

{% endtest %}
