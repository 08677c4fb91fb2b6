{#
    Seeds on Iceberg: one commit that replaces the table, where the adapter drops it and inserts anew at
    each run. The commit carries a checksum of the file and its types: a seed that did not change since
    is left alone. The adapter's macros for the two steps, creating and filling, become one.
#}
{% macro spark__create_csv_table(model, agate_table) %}
    {% if agate_table.rows | length == 0 %}
        {% do run_query(
            iceberg._seed_head() ~ ' as select ' ~ iceberg._seed_columns(model, agate_table) ~ ' from values ('
            ~ (['null'] * (agate_table.column_names | length)) | join(', ') ~ ') as seed ('
            ~ iceberg._seed_names(agate_table) ~ ') where false'
        ) %}
    {% endif %}
    {{ return('') }}
{% endmacro %}

{% macro spark__reset_csv_table(model, full_refresh, old_relation, agate_table) %}
    {{ return(create_csv_table(model, agate_table)) }}
{% endmacro %}

{% macro spark__load_csv_rows(model, agate_table) %}
    {% set checksum = local_md5(
        model.checksum.checksum ~ tojson(model.config.column_types or {}, sort_keys=true)
    ) %}
    {% if not should_full_refresh() and iceberg._seed_is(checksum) %}
        {{ return('select \'the seed is as it was\'') }}
    {% endif %}
    {% set placeholders = '(' ~ (['%s'] * (agate_table.column_names | length)) | join(', ') ~ ')' %}
    {% set sql = iceberg._seed_head() ~ ' as select ' ~ iceberg._seed_columns(model, agate_table)
        ~ ' from values ' ~ ([placeholders] * (agate_table.rows | length)) | join(', ')
        ~ ' as seed (' ~ iceberg._seed_names(agate_table) ~ ')' %}
    {% set bindings = [] %}
    {% for row in agate_table.rows %}
        {% for value in row %}  {# as text: the adapter would make floats of whole numbers #}
            {% do bindings.append(none if value is none else value | string) %}
        {% endfor %}
    {% endfor %}
    {% do iceberg.stamp_session({'seed_checksum': checksum}) %}
    {% do adapter.add_query(sql, bindings=bindings, abridge_sql_log=True) %}
    {% do iceberg.clear_session() %}
    {{ return(sql) }}
{% endmacro %}

{# By the newest commit alone: after a rollback or anyone's change the seed is written again. #}
{% macro _seed_is(checksum) %}
    {% if model.checksum.name == 'path' or load_relation(this) is none %}
        {{ return(false) }}
    {% endif %}
    {% set found = run_query(
        "select 1 from " ~ this ~ ".snapshots as s inner join " ~ this ~ ".refs as r "
        ~ "on s.snapshot_id = r.snapshot_id where r.name = 'main' "
        ~ "and get_json_object(s.summary['dbt'], '$.seed_checksum') = '" ~ checksum ~ "'"
    ) %}
    {{ return(found.rows | length > 0) }}
{% endmacro %}

{% macro _seed_head() %}
    {% set head %}
        create or replace table {{ this }}
        {{ file_format_clause() }}
        {{ tblproperties_clause() }}
        {{ partition_cols(label="partitioned by") }}
        {{ location_clause() }}
        {{ comment_clause() }}
    {% endset %}
    {{ return(head) }}
{% endmacro %}

{% macro _seed_columns(model, agate_table) %}
    {% set types = model.config.column_types or {} %}
    {% set columns = [] %}
    {% for name in agate_table.column_names %}
        {% set type = types.get(name, adapter.convert_type(agate_table, loop.index0)) %}
        {% do columns.append(
            'cast(' ~ adapter.quote(name) ~ ' as ' ~ type ~ ') as ' ~ adapter.quote(name)
        ) %}
    {% endfor %}
    {{ return(columns | join(', ')) }}
{% endmacro %}

{% macro _seed_names(agate_table) %}
    {% set names = [] %}
    {% for name in agate_table.column_names %}
        {% do names.append(adapter.quote(name)) %}
    {% endfor %}
    {{ return(names | join(', ')) }}
{% endmacro %}
