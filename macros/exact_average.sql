{#
    An average that is the same whatever order the rows come in: doubles are added up as decimals.
    An increment and a full refresh give the same last digit.
#}
{% macro exact_average(value, weight=none) -%}
    {%- if weight -%}
    cast(
        sum(cast({{ value }} as decimal(20, 6)) * {{ weight }}) / nullif(sum({{ weight }}), 0) as double
    )
    {%- else -%}
    cast(avg(cast({{ value }} as decimal(20, 6))) as double)
    {%- endif -%}
{%- endmacro %}
