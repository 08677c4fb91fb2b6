{# Descriptions as comments of tables and columns, and only those that changed: each is a commit. #}
{% macro spark__persist_docs(relation, model, for_relation, for_columns) %}
    {% set described = iceberg._described(relation) %}
    {% set columns, comment = described.comments, described.comment %}
    {% if for_relation and config.persist_relation_docs() and model.description %}
        {% set description = model.description | trim %}
        {% if comment != description %}
            {% do run_query('comment on table ' ~ relation ~ ' is ' ~ iceberg.sql_text(description)) %}
        {% endif %}
    {% endif %}
    {% if for_columns and config.persist_column_docs() and model.columns %}
        {% set described = validate_doc_columns(relation, model.columns, columns.keys() | list) %}
        {% set changes = [] %}
        {% for name, column in described.items() %}
            {% set description = column['description'] | trim %}
            {% if columns[name] != description %}
                {% do changes.append(adapter.quote(name) ~ ' comment ' ~ iceberg.sql_text(description)) %}
            {% endif %}
        {% endfor %}
        {% if changes %}
            {% do run_query('alter table ' ~ relation ~ ' alter column ' ~ changes | join(', ')) %}
        {% endif %}
    {% endif %}
{% endmacro %}

{# Types and comments of the columns of the model's table, and its own comment: asked for once. #}
{% macro _described(relation) %}
    {% if model.get('described') %}
        {{ return(model.described) }}
    {% endif %}
    {% set types, comments, facts = {}, {}, {} %}
    {% set in_columns = [true] %}
    {% for row in run_query('describe table extended ' ~ relation) %}
        {% if in_columns and (not row[0] or row[0].startswith('#')) %}
            {% do in_columns.pop() %}
        {% endif %}
        {% if in_columns %}
            {% do types.update({row[0]: row[1]}) %}
            {% do comments.update({row[0]: row[2] or ''}) %}
        {% else %}
            {% do facts.update({row[0]: row[1]}) %}
        {% endif %}
    {% endfor %}
    {% do model.update({'described': {
        'columns': types, 'comments': comments, 'comment': facts.get('Comment', '')
    }}) %}
    {{ return(model.described) }}
{% endmacro %}

{% macro spark__comment_clause() %}
    {% if config.persist_relation_docs() and model.description %}
        comment {{ iceberg.sql_text(model.description | trim) }}
    {% endif %}
{% endmacro %}

{% macro sql_text(text) %}
    {{ return("'" ~ text | replace('\\', '\\\\') | replace("'", "\\'") ~ "'") }}
{% endmacro %}
