{#- One text key from several columns. Nulls and empty texts differ, and so do ('a', 'bc') and ('ab', 'c'). -#}
{% macro surrogate_key(columns) -%}
    md5(to_json(array(
        {%- for column in columns %}cast({{ column }} as string){{ ', ' if not loop.last }}{% endfor -%}
    )))
{%- endmacro %}
