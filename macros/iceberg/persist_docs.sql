{# Comments in one statement, and only those that changed: each statement is a commit. #}
{% macro spark__alter_column_comment(relation, column_dict) %}
    {% set present = {} %}
    {% for row in run_query('describe table ' ~ relation) %}
        {% do present.setdefault(row['col_name'], row['comment'] or '') %}
    {% endfor %}
    {% set changes = [] %}
    {% for name, column in column_dict.items() %}
        {% set comment = column['description'] | trim %}
        {% if present.get(name) != comment %}
            {% set text = comment | replace('\\', '\\\\') | replace("'", "\\'") %}
            {% do changes.append(adapter.quote(name) ~ " comment '" ~ text ~ "'") %}
        {% endif %}
    {% endfor %}
    {% if changes %}
        {% do run_query('alter table ' ~ relation ~ ' alter column ' ~ changes | join(', ')) %}
    {% endif %}
{% endmacro %}
