{# The strategy of an incremental model; one that could lose or double rows is refused. #}
{% macro _safe_strategy() %}
    {% set unique_key = config.get('unique_key') %}
    {% set strategy = config.get('incremental_strategy') or ('merge' if unique_key else 'append') %}
    {% if strategy == 'merge' and not unique_key %}
        {% do iceberg._refuse('it merges without a unique_key, which would append every row. Set unique_key, '
            ~ "or incremental_strategy='append'") %}
    {% elif strategy in ('insert_overwrite', 'microbatch') and not config.get('partition_by') %}
        {% do iceberg._refuse('it replaces partitions (' ~ strategy ~ ') and has no partition_by, so each run '
            ~ "would replace the whole table. Set partition_by, or materialized='table' if that is "
            ~ 'what you want') %}
    {% endif %}
    {{ return(dbt_spark_validate_get_incremental_strategy(strategy, 'iceberg')) }}
{% endmacro %}

{# What this package reads in `meta`; anything else is a slip of the pen unless the project names it. #}
{% macro check_meta() %}
    {% set known = ['newest_by', 'lookups', 'retention', 'iceberg_maintenance'] %}
    {% for key in (config.get('meta') or {}) if key not in known + var('iceberg_other_meta', []) %}
        {% do iceberg._refuse(
            'meta has ' ~ key ~ ', which is not one of ' ~ known | join(', ') ~ '. If it is a key of '
            ~ 'your own, name it in dbt_project.yml: vars: {iceberg_other_meta: [' ~ key ~ ']}'
        ) %}
    {% endfor %}
{% endmacro %}

{# The table may be older than the model's partition_by. #}
{% macro _refuse_unpartitioned(existing) %}
    {% if not iceberg.iceberg_partitioning(existing) %}
        {% do iceberg._refuse('it replaces partitions, but ' ~ existing ~ ' was made without any, so the whole '
            ~ 'table would be replaced. Run: dbt run --full-refresh --select ' ~ model.name) %}
    {% endif %}
{% endmacro %}

{# A column of the table that the model no longer has is null in the new rows. #}
{% macro _select_for(existing, source, columns) %}
    {% set names, values = [], [] %}
    {% for name, type in iceberg._described(existing).columns.items() %}
        {% do names.append(adapter.quote(name)) %}
        {% do values.append(
            adapter.quote(name) if name in columns | map(attribute='name')
            else 'cast(null as ' ~ type ~ ') as ' ~ adapter.quote(name)
        ) %}
    {% endfor %}
    ({{ names | join(', ') }}) select {{ values | join(', ') }} from {{ source }}
{% endmacro %}

{# Iceberg checks an overwrite for what others have committed since only when it is asked to. #}
{% macro _overwrite_options(newest) %}
    {% set options = {'overwrite-mode': 'dynamic'} %}
    {% if newest %}
        {% do options.update({
            'isolation-level': 'serializable', 'validate-from-snapshot-id': newest
        }) %}
    {% endif %}
    {% set written = [] %}
    {% for name, value in options.items() %}
        {% do written.append("'" ~ name ~ "'='" ~ value ~ "'") %}
    {% endfor %}
    {{ return(written | join(', ')) }}
{% endmacro %}

{% macro _newest_snapshot_id(relation) %}
    {% set found = run_query(
        "select concat('s', snapshot_id) from " ~ relation ~ ".refs where name = 'main'"
    ) %}
    {{ return(found.rows[0][0][1:] if found.rows else none) }}
{% endmacro %}

{#
    The columns of an increment, after the table was made to fit them. Without changes that takes one
    statement for the new rows, and the table's own description, which is needed anyway.
#}
{% macro _fitted_columns(new_rows, existing, stamp) %}
    {% set columns = adapter.get_columns_in_relation(new_rows) %}
    {% set present = iceberg._described(existing).columns %}
    {% set is_same = namespace(value=columns | length == present | length) %}
    {% for column in columns if present.get(column.name) != column.data_type %}
        {% set is_same.value = false %}
    {% endfor %}
    {% if config.get('contract').enforced
        and not (is_same.value and stamp.contract == model.contract.checksum) %}
        {% do get_assert_columns_equivalent('select * from ' ~ new_rows) %}
    {% endif %}
    {% if not is_same.value %}
        {# dbt itself puts `ignore` where nothing was said, so what was said is looked up. #}
        {% set is_said = 'on_schema_change' in model.unrendered_config %}
        {% set way = config.get('on_schema_change') if is_said else 'append_new_columns' %}
        {% do model.pop('described', none) %}
        {% if not process_schema_changes(
            incremental_validate_on_schema_change(way, default='append_new_columns'),
            new_rows, existing
        ) %}
            {% set columns = columns | selectattr('name', 'in', present) | list %}
        {% endif %}
    {% endif %}
    {{ return(columns) }}
{% endmacro %}
