{# Descriptions as comments of tables and columns, and only those that changed: each is a commit. #}
{% macro spark__persist_docs(relation, model, for_relation, for_columns) %}
    {% set columns, comment = _present_comments(relation) %}
    {% if for_relation and config.persist_relation_docs() and model.description %}
        {% set description = model.description | trim %}
        {% if comment != description %}
            {% do run_query('comment on table ' ~ relation ~ ' is ' ~ sql_text(description)) %}
        {% endif %}
    {% endif %}
    {% if for_columns and config.persist_column_docs() and model.columns %}
        {% set described = validate_doc_columns(relation, model.columns, columns.keys() | list) %}
        {% set changes = [] %}
        {% for name, column in described.items() %}
            {% set description = column['description'] | trim %}
            {% if columns[name] != description %}
                {% do changes.append(adapter.quote(name) ~ ' comment ' ~ sql_text(description)) %}
            {% endif %}
        {% endfor %}
        {% if changes %}
            {% do run_query('alter table ' ~ relation ~ ' alter column ' ~ changes | join(', ')) %}
        {% endif %}
    {% endif %}
{% endmacro %}

{# The comments of a table's columns by name, and that of the table. #}
{% macro _present_comments(relation) %}
    {% set columns, facts = {}, {} %}
    {% set in_columns = [true] %}
    {% for row in run_query('describe table extended ' ~ relation) %}
        {% if in_columns and (not row[0] or row[0].startswith('#')) %}
            {% do in_columns.pop() %}
        {% endif %}
        {% if in_columns %}
            {% do columns.update({row[0]: row[2] or ''}) %}
        {% else %}
            {% do facts.update({row[0]: row[1]}) %}
        {% endif %}
    {% endfor %}
    {{ return((columns, facts.get('Comment', ''))) }}
{% endmacro %}

{% macro spark__comment_clause() %}
    {% if config.persist_relation_docs() and model.description %}
        comment {{ sql_text(model.description | trim) }}
    {% endif %}
{% endmacro %}

{% macro sql_text(text) %}
    {{ return("'" ~ text | replace('\\', '\\\\') | replace("'", "\\'") ~ "'") }}
{% endmacro %}
