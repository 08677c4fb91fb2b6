{#
    The days in which the touched keys lie, of each call and key, so that files without them are
    skipped. Days are numbers, counted from 1970 on: there is no year that Python or a literal could
    not say. Which rows count is decided by the keys alone; a range may only be too wide.
#}
{% macro _read_days(increment) %}
    {% set parts = [] %}
    {% for call in iceberg._active(increment) %}
        {% set days = [] %}
        {% for name, expression in call['keys'].items()
            if name == call.time_key
            or iceberg._is_time(call, expression, increment.plan.parents[call.name].type) %}
            {% do days.append("'" ~ name ~ "', " ~ iceberg._days_in(name)) %}
        {% endfor %}
        {% do parts.append(
            'select call, count(*) as number, to_json(map(' ~ days | join(', ') ~ ')) as days from ' ~ iceberg._touched_view()
            ~ ' where call = ' ~ call.number ~ ' group by call'
        ) %}
    {% endfor %}
    {% set days, number = {}, [0] %}
    {% for row in run_query(parts | join(' union all ')).rows %}
        {% do days.update({row['call'] | int: fromjson(row['days'])}) %}
        {% do number.append(row['number'] | int) %}
    {% endfor %}
    {# So few keys fit into each task: the rows to read need not be shuffled and sorted for them. #}
    {% do increment.update({'has_few_keys': number | sum <= 100000}) %}
    {% for call in iceberg._active(increment) %}
        {% do call.update({'days': days[call.number]} if call.number in days
            else {'how': 'unchanged'}) %}
    {% endfor %}
{% endmacro %}

{# The days of a column as a text: `d20464,20470`, or first and last where there are very many. #}
{% macro _days_in(column) %}
    {% set days = 'collect_set(unix_date(to_date(' ~ column ~ ')))' %}
    {{ return(
        "concat('d', if(cardinality(" ~ days ~ ') <= 2000, array_join(array_sort(' ~ days ~ "), ','), "
        ~ "concat(array_min(" ~ days ~ "), '..', array_max(" ~ days ~ '))), if(bool_or(' ~ column
        ~ " is null), ',null', ''))"
    ) }}
{% endmacro %}

{# The condition on the columns of a parent; none where a call touches keys that say no time. #}
{% macro _ranges_of_parent(reader, increment) %}
    {% set columns = {} %}
    {% for name, expression in reader['keys'].items() %}
        {% set known = iceberg._column_and_days(expression) %}
        {% if known %}
            {% do columns.update({name: known}) %}
        {% endif %}
    {% endfor %}
    {{ return(iceberg._ranges(
        columns, increment, increment.plan.parents[reader.name].type, reader.back, reader.ahead
    )) }}
{% endmacro %}

{# The condition on the columns of the model's own table. #}
{% macro _ranges_of_target(alias, columns, increment) %}
    {% set known, types = {}, [] %}
    {% for column in columns %}
        {% do known.update({column.name: {'column': alias ~ '.' ~ column.name, 'days': 1}}) %}
        {% do types.append(',' ~ alias ~ '.' ~ column.name ~ ':' ~ column.data_type) %}
    {% endfor %}
    {{ return(iceberg._ranges(known, increment, types | join)) }}
{% endmacro %}

{% macro _ranges(columns, increment, type, back=0, ahead=0) %}
    {% set conditions = [] %}
    {% for call in iceberg._active(increment) %}
        {% set narrow = [] %}
        {% for name, days in call.days.items() if name in columns %}
            {% set column = columns[name].column %}
            {% set of_column = modules.re.search('[<,]' ~ column ~ ':(timestamp|date)', type) %}
            {% if of_column %}
                {% do narrow.append(iceberg._days_condition(
                    column, days, back, ahead + columns[name].days - 1, of_column[1]
                )) %}
            {% endif %}
        {% endfor %}
        {% if not narrow %}
            {{ return(none) }}
        {% endif %}
        {% do conditions.append(narrow | join(' and ')) %}
    {% endfor %}
    {{ return('(' ~ conditions | unique | join(' or ') ~ ')') }}
{% endmacro %}

{# A condition for days, as ranges: days that follow each other are one, and very many are one, too. #}
{% macro _days_condition(column, days, before, after, type) %}
    {% set spans, ranges = [], [] %}
    {% for day in (days or 'd')[1:].split(',') if day not in ('', 'null') %}
        {% set first = day.split('..')[0] | int - before %}
        {% set last = day.split('..')[-1] | int + after %}
        {% if spans and first <= spans[-1][1] + 1 %}
            {% do spans.append((spans.pop()[0], last)) %}
        {% else %}
            {% do spans.append((first, last)) %}
        {% endif %}
    {% endfor %}
    {% if spans | length > 31 %}
        {% set spans = [(spans[0][0], spans[-1][1])] %}
    {% endif %}
    {% for first, last in spans %}
        {% do ranges.append(iceberg._between(column, first, last + 1, type)) %}
    {% endfor %}
    {% if ',null' in (days or '') %}
        {% do ranges.append(column ~ ' is null') %}
    {% endif %}
    {# No day at all is no `false`: Spark 4.0 fails on a merge with it. #}
    {{ return('(' ~ (ranges | join(' or ') or column ~ ' is null') ~ ')') }}
{% endmacro %}

{# Spark's times reach some 290,000 years in both directions; beyond, there is nothing to skip. #}
{% macro _between(column, first, end, type) %}
    {% set limits = [] %}
    {% for sign, day in [(' >= ', first), (' < ', end)] if -106751990 < day < 106751990 %}
        {% set date = 'date_from_unix_date(' ~ day ~ ')' %}
        {% do limits.append(
            column ~ sign ~ (date if type == 'date' else 'cast(' ~ date ~ ' as timestamp)')
        ) %}
    {% endfor %}
    {{ return('(' ~ (limits | join(' and ') or 'true') ~ ')') }}
{% endmacro %}
