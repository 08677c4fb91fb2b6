{#
    Incremental models on Iceberg. Beyond the adapter's own:
    - a full refresh replaces the table in one commit, where the adapter drops it first;
    - on_schema_change is append_new_columns unless the project says otherwise (dbt itself puts
      `ignore` where nothing was said, so what was said is looked up);
    - a unique_key without a strategy merges, where the adapter appends;
    - a contract is checked at every run, not only when the table is made;
    - rows that the model's retention would remove do not come in;
    - a model whose changes cannot be known (changed_rows) is replaced, too;
    - nothing is committed when the model's increment (macros/incremental) is empty;
    - what the session needs for the commit is set for one statement.
#}
{% materialization incremental, adapter='spark', supported_languages=['sql'] %}
    {% do require_iceberg() %}
    {% set unique_key = config.get('unique_key') %}
    {% set strategy = dbt_spark_validate_get_incremental_strategy(
        config.get('incremental_strategy') or ('merge' if unique_key else 'append'), 'iceberg'
    ) %}
    {% do refuse_unsafe_strategy(strategy, unique_key) %}
    {% set existing = load_relation(this) %}
    {% set target_relation = this.incorporate(type='table') %}
    {% set is_rebuilt = existing is none or existing.is_view or should_full_refresh() %}
    {% set is_whole = not is_rebuilt and is_recomputed_whole() %}
    {% set query = within_retention(whole_query() if is_whole else compiled_code) %}

    {{ run_hooks(pre_hooks) }}

    {% if is_rebuilt or is_whole %}
        {% do replace_with_table(existing, target_relation, without_gone(query)) %}
    {% else %}
        {% set new_rows = make_temp_relation(this) %}
        {% call statement('new_rows') %}
            {{ create_temporary_view(new_rows, query) }}
        {% endcall %}
        {% if config.get('contract').enforced %}
            {% do get_assert_columns_equivalent(compiled_code) %}
        {% endif %}
        {% set model_columns = process_schema_changes(
            incremental_validate_on_schema_change(
                model.unrendered_config.get('on_schema_change'), default='append_new_columns'
            ),
            new_rows,
            existing
        ) %}
        {% do add_missing_columns(new_rows, query, existing, model_columns) %}
        {% if touched_days() == [] %}
            {% do commit_statement("select 'nothing new' as outcome") %}
        {% elif strategy == 'merge' %}
            {% do commit_statement(get_merge_sql(
                target_relation, new_rows, unique_key,
                model_columns or adapter.get_columns_in_relation(existing),
                config.get('predicates') or config.get('incremental_predicates')
            )) %}
        {% elif strategy == 'append' %}
            {% do commit_statement(insert_sql('into', target_relation, new_rows)) %}
        {% else %}
            {% do refuse_unpartitioned(existing) %}
            {% do commit_statement(
                insert_sql('overwrite', target_relation, new_rows),
                settings={'spark.sql.sources.partitionOverwriteMode': 'dynamic'}
            ) %}
        {% endif %}
    {% endif %}

    {% do apply_grants(
        target_relation, config.get('grants'), should_revoke(existing, full_refresh_mode=is_rebuilt)
    ) %}
    {% do persist_docs(target_relation, model) %}

    {{ run_hooks(post_hooks) }}

    {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}
