{#
    The relations of a namespace: two cheap statements, however many there are.

    The adapter asks for every table's metadata, and does not see views at all. What it reads from the
    fourth column is the type and the format; the catalog holds Iceberg tables only.
#}
{% macro spark__list_relations_without_caching(relation) %}
    {% set found = [] %}
    {% for row in run_query('show tables in ' ~ relation.schema) %}
        {% do found.append([row[0], row[1], row[2], 'Type: TABLE\nProvider: iceberg\n']) %}
    {% endfor %}
    {% for row in run_query('show views in ' ~ relation.schema) if not row[2] %}
        {% do found.append([row[0], row[1], row[2], 'Type: VIEW\n']) %}
    {% endfor %}
    {{ return(found) }}
{% endmacro %}
