{# Iceberg's catalogs drop empty namespaces only, so what a namespace holds goes first. #}
{% macro spark__drop_schema(relation) %}
    {% set schema = adapter.quote(relation.schema) %}
    {% if run_query("show namespaces like '" ~ relation.schema ~ "'").rows %}
        {% for kind in ('view', 'table') %}
            {% for row in run_query('show ' ~ kind ~ 's in ' ~ schema).rows if not row[2] %}
                {% do run_query(
                    'drop ' ~ kind ~ ' if exists ' ~ schema ~ '.' ~ adapter.quote(row[1])
                    ~ (' purge' if kind == 'table' else '')
                ) %}
            {% endfor %}
        {% endfor %}
        {% do run_query('drop namespace ' ~ schema) %}
    {% endif %}
{% endmacro %}
