{#
    The rows of a parent that a model must read: all of them on a first run, afterwards those of the
    keys that changed. Write the model as if for all rows:

        select ticker, window_start, max(price) as high
        from {{ iceberg.rows_to_recompute(
            ref('stg_stocks__prices'),
            {'ticker': 'ticker', 'window_start': iceberg.minute('event_time')}
        ) }}
        group by ticker, window_start

    `keys` maps columns of the model to expressions on the parent's columns: a row of the parent
    counts in the rows of the model that have its key, and in no others. Where a row of the model looks
    at more than its own time, `looks_back` and `looks_ahead` say how far: '28 days'.

    What a model's SQL compiles to is always the query for all rows. The materialization renders it
    again for an increment, when it knows what changed (plan.sql).
#}
{% macro rows_to_recompute(parent, keys, looks_back=none, looks_ahead=none) %}
    {% if keys is not mapping %}
        {% do iceberg._refuse('rows_to_recompute(' ~ parent ~ '): keys is ' ~ keys ~ ', which is not a '
            ~ "mapping of columns to expressions such as {'day': iceberg.date('sold_at')}") %}
    {% endif %}
    {{ return(iceberg._rows({
        'kind': 'recomputed',
        'parent': parent,
        'keys': keys,
        'back': iceberg._whole_days(looks_back),
        'ahead': iceberg._whole_days(looks_ahead),
    })) }}
{% endmacro %}

{#
    The rows of a source that arrived since the last run, all of them on a first run. Newer means a
    later `loaded_at_field`, a column of the source that must grow with every commit to it.
#}
{% macro new_rows(source) %}
    {{ return(iceberg._rows({'kind': 'new', 'parent': source, 'keys': {}, 'back': 0, 'ahead': 0})) }}
{% endmacro %}

{#
    The newest row of each key in a CTE: the one with the greatest values in the columns `newest_by`,
    in their order. The model's own `unique_key` and `meta.newest_by` should be the same lists.
#}
{% macro newest_of(cte, key, newest_by) %}
    {% if (model.get('increment') or {}).get('needs_days_only') %}
        {{ return(cte) }}  {# older rows may only widen what a merge looks at #}
    {% endif %}
    {{ return(
        '(select * except (_recency) from (select *, row_number() over (partition by '
        ~ iceberg._listed(key) | join(', ') ~ ' order by ' ~ newest_by | join(' desc, ')
        ~ ' desc) as _recency from ' ~ cte ~ ') where _recency = 1)'
    ) }}
{% endmacro %}

{# What a call becomes: the query for all rows, unless an increment is being written. #}
{% macro _rows(call) %}
    {% set increment = model.get('increment') %}
    {% if increment and increment.plan %}
        {% do increment.written.append(call) %}
        {{ return(iceberg._rows_to_read(increment.calls[increment.written | length - 1], increment)) }}
    {% elif increment %}
        {% do increment.calls.append(call) %}
    {% endif %}
    {{ return(iceberg._keyed_rows(call)) }}
{% endmacro %}

{#
    The parent with the keys as columns. A key that is made of a column of its own name takes that
    column's place.
#}
{% macro _keyed_rows(call, conditions=[]) %}
    {% set added, replaced = [], [] %}
    {% for name, expression in call['keys'].items() if expression != name %}
        {% do added.append(', ' ~ expression ~ ' as ' ~ name) %}
        {% if modules.re.search('\\b' ~ name ~ '\\b', expression) %}
            {% do replaced.append(name) %}
        {% endif %}
    {% endfor %}
    {% if not added and not conditions %}
        {{ return(call.parent | string) }}
    {% endif %}
    {{ return(
        '(select *' ~ (' except (' ~ replaced | join(', ') ~ ')' if replaced else '')
        ~ added | join ~ ' from ' ~ call.parent
        ~ (' where ' ~ conditions | join(' and ') if conditions else '') ~ ')'
    ) }}
{% endmacro %}

{# The rows of a parent that an increment reads. #}
{% macro _rows_to_read(call, increment) %}
    {% set conditions = [] %}
    {% if call.arrived %}
        {% do conditions.append(iceberg._until(call, increment)) %}
    {% endif %}
    {% if call.kind == 'new' %}
        {% do conditions.append(iceberg._since(call, increment)) %}
        {{ return(iceberg._keyed_rows(call, conditions)) }}
    {% endif %}
    {% set ranges = iceberg._ranges_of_parent(call, increment) %}
    {% if ranges %}
        {% do conditions.append(ranges) %}
    {% endif %}
    {{ return(
        '(select * from ' ~ iceberg._keyed_rows(call, conditions) ~ ' as parent_rows where '
        ~ iceberg._is_touched('parent_rows', call['keys'], increment, call) ~ ')'
    ) }}
{% endmacro %}

{% macro _since(call, increment) %}
    {% set read = increment.plan.parents[call.name].read %}
    {# A source that was empty has no position. #}
    {{ return(
        call.arrived ~ (' > timestamp_micros(' ~ read ~ ')' if read else ' is not null')
    ) }}
{% endmacro %}

{% macro _until(call, increment) %}
    {{ return(
        call.arrived ~ ' <= timestamp_micros(' ~ increment.plan.parents[call.name].newest ~ ')'
    ) }}
{% endmacro %}

{# '28 days' as a number. #}
{% macro _whole_days(span) %}
    {% if span is none %}
        {{ return(0) }}
    {% endif %}
    {% set match = modules.re.fullmatch('(\d+) days?', span | string) %}
    {% if not match %}
        {% do iceberg._refuse("looks_back and looks_ahead are days, such as '28 days', not '" ~ span ~ "'") %}
    {% endif %}
    {{ return(match[1] | int) }}
{% endmacro %}

{% macro _listed(value) %}
    {{ return([value] if value is string else (value or [])) }}
{% endmacro %}

{% macro _refuse(problem) %}
    {{ exceptions.raise_compiler_error('model ' ~ model.name ~ ': ' ~ problem) }}
{% endmacro %}
