{#
    The defaults of table care, in this one place; docs/operating.md tells them to users. A model
    overlays them in meta.iceberg_maintenance, a stream file under `maintenance`.
#}
{% macro _maintenance_defaults(schema, is_source) %}
    {% set policy = {
        'compact': true,
        'target_file_mb': none,
        'min_files': 5,
        'sort_by': [],
        'closed_after': 24,
        'time_travel_days': 7,
        'keep_snapshots': 10,
        'orphan_days': 3,
    } %}
    {% if is_source %}
        {# Its partitions are days of arrival: what is over gets no more rows. #}
        {% do policy.update({'closed_after': 1}) %}
    {% else %}
        {# A merge writes each file that it touches anew, so smaller files make cheaper merges. #}
        {% do policy.update({'target_file_mb': 128}) %}
    {% endif %}
    {% do policy.update(var('iceberg_maintenance_defaults', {}).get(schema, {})) %}
    {{ return(policy) }}
{% endmacro %}

{# The least that a number may be. A day, since a reader or a writer may be at work for hours. #}
{% macro _maintenance_minima() %}
    {{ return({
        'target_file_mb': 1,
        'min_files': 2,
        'closed_after': 0,
        'time_travel_days': 1,
        'keep_snapshots': 1,
        'orphan_days': 1,
    }) }}
{% endmacro %}

{# The policy of one table: what is declared over the defaults of its schema. #}
{% macro _maintenance_policy(name, declared, is_source) %}
    {% set policy = iceberg._maintenance_defaults(name.split('.')[0], is_source) %}
    {% for key, value in declared.items() %}
        {% set minimum = iceberg._maintenance_minima().get(key) %}
        {% if key not in policy %}
            {% do iceberg._refuse_policy(name, key ~ ' is not a key of iceberg_maintenance', policy) %}
        {% elif key == 'compact' and value is not boolean %}
            {% do iceberg._refuse_policy(name, 'compact is ' ~ value ~ ', not true or false', policy) %}
        {% elif key == 'sort_by' and (value is string or value is not sequence) %}
            {% do iceberg._refuse_policy(name, 'sort_by is ' ~ value ~ ', not a list', policy) %}
        {% elif minimum is not none and (value is not integer or value < minimum) %}
            {% do iceberg._refuse_policy(
                name, key ~ ' is ' ~ value ~ ', not a whole number from ' ~ minimum, policy
            ) %}
        {% endif %}
    {% endfor %}
    {% do policy.update(declared) %}
    {{ return(policy) }}
{% endmacro %}

{% macro _refuse_policy(name, problem, policy) %}
    {{ exceptions.raise_compiler_error(
        name ~ ': ' ~ problem ~ '; the keys are ' ~ policy.keys() | join(', ')
    ) }}
{% endmacro %}
