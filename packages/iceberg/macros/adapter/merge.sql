{#
    Merge for incremental models on Iceberg. Beyond the adapter's own:
    - a null in the key equals a null, so such a row is updated, where the adapter adds it each time;
    - a column that the model no longer has is left as it is, and null in new rows;
    - meta.newest_by names the columns of the total order: a row is updated only by a newer one;
    - a key that an increment touched, and that has nothing any more, is deleted;
    - only the days that the increment touches are read in the target.
#}
{% macro spark__get_merge_sql(target, source, unique_key, dest_columns, incremental_predicates) %}
    {% set increment = model.get('increment') %}
    {% set finds_gone = iceberg._finds_gone(increment) %}
    {% set ranges = iceberg._merge_ranges(source, unique_key, dest_columns, increment) %}
    {% set predicates = (incremental_predicates or []) + ([ranges] if ranges else []) %}
    {% for key in iceberg._listed(unique_key) %}
        {% do predicates.append('DBT_INTERNAL_SOURCE.' ~ key ~ ' <=> DBT_INTERNAL_DEST.' ~ key) %}
    {% endfor %}
    {% set updated = get_merge_update_columns(
        config.get('merge_update_columns'), config.get('merge_exclude_columns'), dest_columns
    ) or dest_columns | map(attribute='quoted') | list %}
    {% set names = dest_columns | map(attribute='quoted') | join(', ') %}
    {% set newest_by = (config.get('meta') or {}).get('newest_by') %}
    {% if finds_gone and (ranges or increment.plan.bytes < 2 ** 25) %}
        {% do iceberg._rewrite_at_once() %}
    {% endif %}
    {% set is_there = ' and DBT_INTERNAL_SOURCE._is_there' if finds_gone else '' %}
    merge into {{ target }} as DBT_INTERNAL_DEST
    using {{ iceberg._with_gone(target, source, unique_key, dest_columns, increment) if finds_gone else source }}
        as DBT_INTERNAL_SOURCE
    on {{ predicates | join('\n        and ') }}
    {% if finds_gone -%}
    when matched and not DBT_INTERNAL_SOURCE._is_there then delete
    {% endif -%}
    when matched {% if newest_by %} and {{ iceberg._is_newer(newest_by) }} {% endif %} then update set
        {% for name in updated -%}
        {{ name }} = DBT_INTERNAL_SOURCE.{{ name }}{{ ',' if not loop.last }}
        {% endfor %}
    when not matched {{ is_there }}
        then insert ({{ names }}) values ({{ iceberg._prefixed('DBT_INTERNAL_SOURCE', dest_columns) }})
{% endmacro %}

{% macro _finds_gone(increment) %}
    {{ return(
        increment and increment.plan and increment.plan.outcome == 'increment'
        and increment.calls[0].kind == 'recomputed'
    ) }}
{% endmacro %}

{% macro _prefixed(alias, columns) %}
    {% set names = [] %}
    {% for column in columns %}
        {% do names.append(alias ~ '.' ~ column.quoted) %}
    {% endfor %}
    {{ return(names | join(', ')) }}
{% endmacro %}

{% macro _is_newer(columns) %}
    {% set newer = 'DBT_INTERNAL_SOURCE.' ~ columns | join(', DBT_INTERNAL_SOURCE.') %}
    {% set older = 'DBT_INTERNAL_DEST.' ~ columns | join(', DBT_INTERNAL_DEST.') %}
    {{ return('struct(' ~ newer ~ ') > struct(' ~ older ~ ')') }}
{% endmacro %}

{#
    The days of the target that a merge must look at: those of the keys that changed, or, for new rows,
    those in their own key.
#}
{% macro _merge_ranges(source, unique_key, columns, increment) %}
    {% if iceberg._finds_gone(increment) %}
        {{ return(iceberg._ranges_of_target('DBT_INTERNAL_DEST', columns, increment)) }}
    {% endif %}
    {% set days, times, conditions = [], [], [] %}
    {% for column in columns if column.name in iceberg._listed(unique_key)
        and column.data_type.startswith(('timestamp', 'date')) %}
        {% do days.append(iceberg._days_in(column.quoted) ~ ' as ' ~ column.quoted) %}
        {% do times.append(column) %}
    {% endfor %}
    {% if times %}
        {% set rows = iceberg._new_rows_in_short(source, increment) %}
        {% set answer = run_query('select ' ~ days | join(', ') ~ ' from ' ~ rows).rows[0] %}
        {% for column in times %}
            {% do conditions.append(iceberg._days_condition(
                'DBT_INTERNAL_DEST.' ~ column.quoted, answer[column.name], 0, 0,
                'date' if column.data_type == 'date' else 'timestamp'
            )) %}
        {% endfor %}
    {% endif %}
    {{ return(conditions | join(' and ')) }}
{% endmacro %}

{# The rows of an increment, and perhaps older ones of the same keys, at less cost. #}
{% macro _new_rows_in_short(source, increment) %}
    {% if not increment or not increment.plan or increment.plan.outcome != 'increment' %}
        {{ return(source) }}
    {% endif %}
    {% do increment.update({'needs_days_only': true, 'written': []}) %}
    {{ return('(' ~ render(model.raw_code) ~ ')') }}
{% endmacro %}

{#
    What the model has for the touched keys, and the keys of its table for which it has nothing any
    more (`_is_there` is false). Rows of other keys are left out: they were made of a part of their rows.
    Where the touched keys are those of the table, they themselves say which may be gone; else the
    table is asked for its rows that they touch.
#}
{% macro _with_gone(target, source, unique_key, columns, increment) %}
    {% set keys = iceberg._listed(unique_key) %}
    {% set names = columns | map(attribute='name') | list %}
    {% set same, merged = [], [] %}
    {% for key in keys %}
        {% do same.append('new_rows.' ~ key ~ ' <=> old_keys.' ~ key) %}
    {% endfor %}
    {% for column in columns %}
        {% do merged.append(
            'coalesce(new_rows.%s, old_keys.%s) as %s' % (column.name, column.name, column.name)
            if column.name in keys else 'new_rows.' ~ column.quoted
        ) %}
    {% endfor %}
    {% set is_simple = iceberg._touches_whole_keys(keys, increment) %}
    {% set ranges = iceberg._ranges_of_target('target', columns, increment) %}
    (
        select
            {{ merged | join(', ') }},
            coalesce(new_rows._is_there, false) as _is_there
        from (
            select candidates.*, true as _is_there
            from {{ source }} as candidates
            {% if not is_simple -%}
            where {{ iceberg._to_replace('candidates', names, increment) }}
            {%- endif %}
        ) as new_rows
        {{ 'right' if is_simple else 'full' }} outer join (
            select distinct {{ keys | join(', ') }}
            {% if is_simple -%}
            from {{ iceberg._touched_view() }} as touched
            where {{ iceberg._is_whole('touched', names, increment) }}
            {%- else -%}
            from {{ target }} as target
            where {{ iceberg._to_replace('target', names, increment) }} {{ 'and ' ~ ranges if ranges }}
            {%- endif %}
        ) as old_keys on {{ same | join(' and ') }}
    )
{% endmacro %}

{% macro _touches_whole_keys(keys, increment) %}
    {% for call in increment.calls if call.time_key or call['keys'] | sort | list != keys | sort | list %}
        {{ return(false) }}
    {% endfor %}
    {{ return(true) }}
{% endmacro %}

{% macro _to_replace(alias, names, increment) %}
    {{ return(
        iceberg._is_touched(alias, names, increment) ~ ' and '
        ~ iceberg._is_whole(alias, names, increment)
    ) }}
{% endmacro %}

{# Whether no retention of any parent has cut into the rows that a key was made of: a condition. #}
{% macro _is_whole(alias, names, increment) %}
    {% set conditions = ['true'] %}
    {% for call in increment.calls if call.retention %}
        {% do conditions.append(iceberg._is_complete(call, names, increment, alias)) %}
    {% endfor %}
    {{ return(conditions | join(' and ')) }}
{% endmacro %}

{#
    Before it rewrites files, Spark computes the new rows once more, to see which files have a match. Of
    rows that are computed again nearly all files in their days have one, and a small table is
    rewritten more cheaply than looked through. New rows match few files: there Spark must look.
#}
{% macro _rewrite_at_once() %}
    {% do run_query(
        'set spark.sql.optimizer.runtime.rowLevelOperationGroupFilter.enabled = false'
    ) %}
{% endmacro %}
