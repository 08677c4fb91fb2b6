{# One text key from several columns. Null is not empty text, ('a', 'bc') is not ('ab', 'c'). #}
{% macro surrogate_key(columns) %}
    md5(to_json(array(
        {% for column in columns %}cast({{ column }} as string){{ ', ' if not loop.last }}{% endfor %}
    )))
{% endmacro %}
