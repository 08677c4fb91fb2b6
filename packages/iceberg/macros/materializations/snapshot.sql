{#
    Snapshots (slowly changing dimensions, type 2) on Iceberg. Beyond the adapter's own: the rows to
    merge are a temporary view of the session, where the adapter makes a view in the catalog; and the
    commit says who made it.
#}
{% materialization snapshot, adapter='spark' %}
    {% do iceberg.require_iceberg() %}
    {% set exists, target_relation = get_or_create_relation(
        database=none, schema=model.schema, identifier=model.alias, type='table'
    ) %}
    {% if not target_relation.is_table %}
        {% do exceptions.relation_wrong_type(target_relation, 'table') %}
    {% endif %}
    {% set strategy = strategy_dispatch(config.get('strategy'))(
        model, 'snapshotted_data', 'source_data', model['config'], exists
    ) %}

    {{ run_hooks(pre_hooks) }}

    {% if not exists %}
        {% do iceberg.commit_statement(create_table_as(
            False, target_relation, build_snapshot_table(strategy, model['compiled_code'])
        )) %}
    {% else %}
        {% do adapter.valid_snapshot_target(
            target_relation,
            config.get('snapshot_table_column_names') or get_snapshot_table_column_names()
        ) %}
        {% set changes = make_temp_relation(target_relation) %}
        {% call statement('changes') %}
            {{ create_temporary_view(
                changes, snapshot_staging_table(strategy, sql, target_relation)
            ) }}
        {% endcall %}
        {% set new_columns = [] %}
        {% for column in adapter.get_missing_columns(changes, target_relation)
            if not column.name.startswith(('dbt_change_type', 'dbt_unique_key')) %}
            {% do new_columns.append(column) %}
        {% endfor %}
        {% do alter_relation_add_remove_columns(target_relation, new_columns, none) %}
        {% do iceberg.commit_statement(snapshot_merge_sql(target_relation, changes, none)) %}
    {% endif %}

    {% do apply_grants(
        target_relation, config.get('grants'), should_revoke(exists, full_refresh_mode=False)
    ) %}
    {% do persist_docs(target_relation, model) %}

    {{ run_hooks(post_hooks) }}

    {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}
