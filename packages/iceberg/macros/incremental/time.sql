{#
    The first instant of the minute, hour, ... that a time lies in, in the time zone of the session.
    As keys of rows_to_recompute they are more than SQL: their width is known, so files are skipped.
#}
{% macro minute(column) %}{{ return("date_trunc('minute', " ~ column ~ ')') }}{% endmacro %}
{% macro hour(column) %}{{ return("date_trunc('hour', " ~ column ~ ')') }}{% endmacro %}
{% macro day(column) %}{{ return("date_trunc('day', " ~ column ~ ')') }}{% endmacro %}
{% macro week(column) %}{{ return("date_trunc('week', " ~ column ~ ')') }}{% endmacro %}
{% macro month(column) %}{{ return("date_trunc('month', " ~ column ~ ')') }}{% endmacro %}
{% macro quarter(column) %}{{ return("date_trunc('quarter', " ~ column ~ ')') }}{% endmacro %}
{% macro year(column) %}{{ return("date_trunc('year', " ~ column ~ ')') }}{% endmacro %}

{# The day that a time lies in, as a date. #}
{% macro date(column) %}{{ return('cast(' ~ column ~ ' as date)') }}{% endmacro %}

{# The first instant of the window of so many minutes, counted from midnight UTC. #}
{% macro minutes(column, length) %}
    {% if length is not integer or length < 1 or 1440 % length %}
        {{ exceptions.raise_compiler_error(
            'minutes(' ~ column ~ ', ' ~ length ~ '): windows must fill a day, so the length must be a '
            ~ 'whole number that divides 1440'
        ) }}
    {% endif %}
    {% set seconds = 'unix_seconds(' ~ column ~ ')' %}
    {{ return(
        'timestamp_seconds(' ~ seconds ~ ' - pmod(' ~ seconds ~ ', ' ~ length * 60 ~ '))'
    ) }}
{% endmacro %}

{#
    The plain column in the expression of a key, and how many days from the day of the key's value on
    it can lie in; none where that cannot be proved.
#}
{% macro _column_and_days(expression) %}
    {% set patterns = {
        '(\w+)': 1,
        "date_trunc\('(?:minute|hour|day)', (\w+)\)": 1,
        "date_trunc\('week', (\w+)\)": 7,
        "date_trunc\('month', (\w+)\)": 31,
        "date_trunc\('quarter', (\w+)\)": 92,
        "date_trunc\('year', (\w+)\)": 366,
        'cast\((\w+) as date\)': 1,
        'timestamp_seconds\(unix_seconds\((\w+)\) - pmod\(unix_seconds\(\\1\), \d+\)\)': 2,
    } %}
    {% for pattern, days in patterns.items() %}
        {% set match = modules.re.fullmatch(pattern, expression | trim) %}
        {% if match %}
            {{ return({'column': match[1], 'days': days}) }}
        {% endif %}
    {% endfor %}
    {{ return(none) }}
{% endmacro %}
