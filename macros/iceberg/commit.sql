{#
    The statement of a model that commits. Its snapshot says who wrote it: in `<table>.snapshots`,
    `summary` has the invocation, the model and the version of its project.

    The properties belong to the session. They are set for this statement and taken away after it,
    with the marks that `changed_rows` has set for it, so no other commit is stamped by accident.
#}
{% macro commit_statement(sql, settings={}) %}
    {% do stamp_session(settings) %}
    {% call statement('main') %}
        {{ sql }}
    {% endcall %}
    {% do clear_session(settings) %}
{% endmacro %}

{% macro stamp_session(settings={}) %}
    {% for name, value in settings.items() %}
        {% do run_query('set `' ~ name ~ '` = ' ~ value) %}
    {% endfor %}
    {% for name, value in _commit_stamp().items() %}
        {% do run_query('set `' ~ snapshot_property(name) ~ '` = ' ~ value) %}
    {% endfor %}
{% endmacro %}

{% macro clear_session(settings={}) %}
    {% set names = settings.keys() | list %}
    {% for name in _commit_stamp() %}
        {% do names.append(snapshot_property(name)) %}
    {% endfor %}
    {% for parent in model.depends_on.nodes if parent in graph.nodes %}
        {% do names.append(snapshot_property(read_mark(graph.nodes[parent].alias))) %}
    {% endfor %}
    {% for name in names %}
        {% do run_query('reset `' ~ name ~ '`') %}
    {% endfor %}
{% endmacro %}

{% macro _commit_stamp() %}
    {{ return({
        'dbt.invocation_id': invocation_id,
        'dbt.model': model.unique_id,
        'dbt.project_version': var('project_version', 'unknown'),
    }) }}
{% endmacro %}

{# The session setting that writes a property into the summary of each commit. #}
{% macro snapshot_property(name) %}
    {{ return('spark.sql.iceberg.snapshot-property.' ~ name) }}
{% endmacro %}
