{# The first instant of the window that a time falls in; windows of a day begin at midnight UTC. #}
{% macro time_window(column, minutes) -%}
    timestamp_seconds(unix_seconds({{ column }}) - pmod(unix_seconds({{ column }}), {{ minutes * 60 }}))
{%- endmacro %}
