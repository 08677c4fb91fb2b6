{# A table that is built anew at each run, in one commit. #}
{% materialization table, adapter='spark', supported_languages=['sql'] %}
    {% do iceberg.require_iceberg() %}
    {% do iceberg.check_meta() %}
    {% set existing = load_relation(this) %}
    {% set target_relation = this.incorporate(type='table') %}

    {{ run_hooks(pre_hooks) }}

    {% do iceberg.replace_with_table(existing, target_relation, iceberg.within_retention(compiled_code)) %}

    {% do apply_grants(
        target_relation, config.get('grants'), should_revoke(existing, full_refresh_mode=True)
    ) %}
    {% do persist_docs(target_relation, model) %}

    {{ run_hooks(post_hooks) }}

    {{ return({'relations': [target_relation]}) }}
{% endmaterialization %}
