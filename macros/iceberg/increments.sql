{% macro refuse_unsafe_strategy(strategy, unique_key) %}
    {% if strategy == 'merge' and not unique_key %}
        {{ exceptions.raise_compiler_error(
            'model ' ~ model.name ~ ' merges without a unique_key, which would append every row. '
            ~ "Set unique_key, or incremental_strategy='append'."
        ) }}
    {% elif strategy in ['insert_overwrite', 'microbatch'] and not config.get('partition_by') %}
        {{ exceptions.raise_compiler_error(
            'model ' ~ model.name ~ ' replaces partitions (' ~ strategy ~ ') and has no partition_by, '
            ~ 'so each run would replace the whole table. Set partition_by, or '
            ~ "materialized='table' if that is what you want."
        ) }}
    {% endif %}
{% endmacro %}

{# The table may be older than the model's partition_by. #}
{% macro refuse_unpartitioned(existing) %}
    {% if not iceberg_partitioning(existing) %}
        {{ exceptions.raise_compiler_error(
            'model ' ~ model.name ~ ' replaces partitions, but ' ~ existing ~ ' was made without any, '
            ~ 'so the whole table would be replaced. Run: dbt run --full-refresh --select '
            ~ model.name
        ) }}
    {% endif %}
{% endmacro %}

{# A column of the table that the model no longer has is null in the new rows. #}
{% macro add_missing_columns(new_rows, query, existing, model_columns) %}
    {% set known = model_columns | map(attribute='name') | map('lower') | list %}
    {% set missing = [] %}
    {% for column in adapter.get_columns_in_relation(existing)
        if known and column.name | lower not in known %}
        {% do missing.append(
            'cast(null as ' ~ column.data_type ~ ') as ' ~ adapter.quote(column.name)
        ) %}
    {% endfor %}
    {% if missing %}
        {% call statement('new_rows') %}
            {{ create_temporary_view(
                new_rows, 'select *, ' ~ missing | join(', ') ~ ' from (' ~ query ~ ')'
            ) }}
        {% endcall %}
    {% endif %}
{% endmacro %}

{% macro insert_sql(how, target, source) %}
    {% set names = adapter.get_columns_in_relation(target) | map(attribute='quoted') | join(', ') %}
    insert {{ how }} {{ target }} ({{ names }})
    select {{ names }} from {{ source }}
{% endmacro %}
