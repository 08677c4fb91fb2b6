{#
    Incremental models on Iceberg. Beyond the adapter's own:
    - a model that says its keys (macros/incremental) reads and writes what changed, and nothing else;
      where nothing did, nothing is committed;
    - a full refresh replaces the table in one commit, where the adapter drops it first;
    - on_schema_change is append_new_columns unless the project says otherwise;
    - a unique_key without a strategy merges, where the adapter appends;
    - a contract is checked whenever the columns or the contract changed, not only at first;
    - rows that the model's retention would remove do not come in.
#}
{% materialization incremental, adapter='spark', supported_languages=['sql'] %}
    {% do iceberg.require_iceberg() %}
    {% do iceberg.check_meta() %}
    {% set strategy = iceberg._safe_strategy() %}
    {% set existing = load_relation(this) %}
    {% set target_relation = this.incorporate(type='table') %}
    {% set is_rebuilt = existing is none or existing.is_view or should_full_refresh() %}

    {{ run_hooks(pre_hooks) }}

    {% set increment = iceberg._start_increment(none if is_rebuilt else existing) %}
    {% set outcome = increment.plan.outcome if increment.plan else none %}
    {% set way = iceberg._accept_unknown_changes(increment) if outcome == 'whole' else none %}

    {% if is_rebuilt or way == 'replace' %}
        {% do iceberg.replace_with_table(
            existing, target_relation, iceberg.within_retention(compiled_code), iceberg._stamp(increment)
        ) %}
    {% elif outcome == 'nothing' %}
        {% do store_raw_result('main', message='OK, nothing new', code='OK', rows_affected='0') %}
    {% else %}
        {% set query = compiled_code if way == 'keep' or not increment.calls
            or iceberg.is_limited_run() else render(model.raw_code) %}
        {% do iceberg._write_increment(strategy, existing, target_relation, query, increment) %}
    {% endif %}

    {% do apply_grants(
        target_relation, config.get('grants'), should_revoke(existing, full_refresh_mode=is_rebuilt)
    ) %}
    {% do persist_docs(target_relation, model) %}

    {{ run_hooks(post_hooks) }}

    {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}

{#
    What this run has to do. With --empty or --sample the parents are not read as they are, so their
    positions stay where they were.
#}
{% macro _start_increment(existing) %}
    {% set increment = iceberg._collect_calls() %}
    {% if increment.calls %}
        {% do iceberg._plan(increment, existing) %}
        {% if iceberg.is_limited_run() and increment.plan.outcome in ('nothing', 'increment', 'whole') %}
            {% do increment.plan.update({'outcome': 'limited'}) %}
        {% elif increment.plan.outcome == 'increment' and increment.calls[0].kind == 'recomputed' %}
            {% do iceberg._create_touched_view(increment) %}
            {% do iceberg._read_days(increment) %}
            {% if not iceberg._active(increment) %}
                {% do increment.plan.update({'outcome': 'nothing'}) %}
            {% endif %}
        {% endif %}
    {% endif %}
    {{ return(increment) }}
{% endmacro %}

{% macro is_limited_run() %}
    {% if flags.EMPTY or flags.SAMPLE %}
        {{ return(true) }}
    {% endif %}
    {{ return(false) }}
{% endmacro %}

{# What the commit says of the model's state. A table that a limited run has made is partial. #}
{% macro _stamp(increment) %}
    {% set stamp = {'contract': model.contract.checksum} if config.get('contract').enforced else {} %}
    {% if increment.calls and iceberg.is_limited_run() %}
        {% do stamp.update({
            'read': increment.plan.stamp.read or {},
            'is_partial': increment.plan.outcome == 'first' or increment.plan.stamp.is_partial or false,
        }) %}
    {% elif increment.calls %}
        {% do stamp.update({'read': iceberg._positions_to_keep(increment)}) %}
    {% endif %}
    {{ return(stamp) }}
{% endmacro %}

{% macro _write_increment(strategy, existing, target_relation, query, increment) %}
    {% set newest = iceberg._newest_snapshot_id(existing) if strategy in ('insert_overwrite', 'microbatch') %}
    {% set new_rows = make_temp_relation(this) %}
    {% call statement('new_rows') %}
        {{ create_temporary_view(new_rows, iceberg.within_retention(query)) }}
    {% endcall %}
    {% set columns = iceberg._fitted_columns(
        new_rows, existing, increment.plan.stamp if increment.plan else {}
    ) %}
    {% do iceberg._check_keys(columns, increment) %}
    {% if strategy == 'merge' %}
        {% set sql = get_merge_sql(
            target_relation, new_rows, config.get('unique_key'), columns,
            config.get('predicates') or config.get('incremental_predicates')
        ) %}
    {% elif strategy == 'append' %}
        {% set sql = 'insert into ' ~ target_relation
            ~ iceberg._select_for(existing, new_rows, columns) %}
    {% else %}
        {% do iceberg._refuse_unpartitioned(existing) %}
        {% set sql = 'insert overwrite ' ~ target_relation ~ ' with ('
            ~ iceberg._overwrite_options(newest) ~ ')'
            ~ iceberg._select_for(existing, new_rows, columns) %}
    {% endif %}
    {% do iceberg.commit_statement(sql, iceberg._stamp(increment)) %}
{% endmacro %}

{# A key that is no column of the model could not find the rows of its table. #}
{% macro _check_keys(columns, increment) %}
    {% for call in increment.calls %}
        {% for name in call['keys'] if name not in columns | map(attribute='name') %}
            {% do iceberg._refuse('rows_to_recompute(' ~ call.name ~ ') has the key ' ~ name ~ ', and the model '
                ~ 'has no such column. Its keys must be columns of the model') %}
        {% endfor %}
    {% endfor %}
{% endmacro %}
