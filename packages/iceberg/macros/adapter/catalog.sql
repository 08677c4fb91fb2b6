{#
    The columns of a relation as the adapter reads them, from `describe extended`. For the docs catalog
    the table's Iceberg facts come along, in the lines where the adapter looks for statistics.
#}
{% macro spark__get_columns_in_relation_raw(relation) %}
    {% set rows = run_query('describe extended ' ~ relation).rows | list %}
    {% if flags.WHICH == 'generate' and relation.is_iceberg %}
        {% set rows = rows + run_query(iceberg._iceberg_facts(relation)).rows | list %}
    {% endif %}
    {{ return(rows) }}
{% endmacro %}

{# The adapter returns the lines of `describe` here, where dbt's own macros expect columns. #}
{% macro spark__get_columns_in_relation(relation) %}
    {{ return(adapter.get_columns_in_relation(relation)) }}
{% endmacro %}

{# From the metadata of the table: no row is read. #}
{% macro _iceberg_facts(relation) %}
    with files as (
        select
            count(*) as files,
            coalesce(sum(record_count), 0) as records,
            coalesce(sum(file_size_in_bytes), 0) as bytes
        from {{ relation }}.files
        where content = 0
    ),

    snapshots as (
        select
            count(*) as snapshots,
            max(committed_at) as last_commit
        from {{ relation }}.snapshots
    )

    select
        'Statistics' as col_name,
        concat(
            records, ' rows, ', bytes, ' bytes, ', files, ' files, ', snapshots, ' snapshots'
        ) as data_type,
        '' as comment
    from files cross join snapshots
    union all
    select
        'Last commit' as col_name,
        cast(last_commit as string) as data_type,
        '' as comment
    from snapshots
{% endmacro %}
