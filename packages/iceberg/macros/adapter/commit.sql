{#
    The statement of a model that commits. Its snapshot says who wrote it, and what it has read: in
    `<table>.snapshots`, `summary['dbt']` is JSON with the invocation, the model, the version of its
    project, and the position in each parent. The property belongs to the session, which dbt closes
    behind the model. Hooks that follow would be stamped by accident, so for them it is reset.
#}
{% macro commit_statement(sql, stamp={}) %}
    {% do iceberg.stamp_session(stamp) %}
    {% call statement('main') %}
        {{ sql }}
    {% endcall %}
    {% do iceberg.clear_session() %}
{% endmacro %}

{% macro stamp_session(stamp={}) %}
    {% set facts = {
        'model': model.unique_id,
        'invocation_id': invocation_id,
        'project_version': var('project_version', 'unknown'),
    } %}
    {% do facts.update(stamp) %}
    {% do run_query('set `' ~ iceberg._stamp_setting() ~ '` = ' ~ tojson(facts)) %}
{% endmacro %}

{% macro clear_session() %}
    {% if post_hooks %}
        {% do run_query('reset `' ~ iceberg._stamp_setting() ~ '`') %}
    {% endif %}
{% endmacro %}

{% macro _stamp_setting() %}
    {{ return('spark.sql.iceberg.snapshot-property.dbt') }}
{% endmacro %}
