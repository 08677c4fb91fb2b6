{#
    What the model asks for: each call of rows_to_recompute and new_rows, in the order in which its SQL
    makes them. The SQL is rendered to find them, since a macro of the project may make them.
#}
{% macro _collect_calls() %}
    {% set calls = [] %}
    {% do model.update({'increment': {'calls': calls, 'plan': none, 'written': []}}) %}
    {% do render(model.raw_code) %}
    {% if calls %}
        {% do iceberg._check_strategy(calls) %}
        {% for call in calls %}
            {% do call.update(iceberg._parent_facts(call.parent)) %}
            {% do iceberg._check_call(call) %}
        {% endfor %}
        {% do iceberg._check_parents(calls) %}
    {% endif %}
    {{ return(model.increment) }}
{% endmacro %}

{% macro _check_strategy(calls) %}
    {% set unique_key = config.get('unique_key') %}
    {% if not unique_key or (config.get('incremental_strategy') or 'merge') != 'merge' %}
        {% do iceberg._refuse('rows_to_recompute and new_rows need a unique_key and the strategy merge: a run '
            ~ 'that is repeated, or a second one at the same time, must not add rows twice') %}
    {% elif calls | map(attribute='kind') | unique | list | length > 1 %}
        {% do iceberg._refuse('it calls both rows_to_recompute and new_rows. Put the new rows in a model of '
            ~ 'their own, and recompute from that') %}
    {% endif %}
{% endmacro %}

{# The table behind a parent, without the limits of --empty and --sample. #}
{% macro _parent_facts(parent) %}
    {% set facts = {
        'name': parent.schema ~ '.' ~ parent.identifier,
        'table': adapter.quote(parent.schema) ~ '.' ~ adapter.quote(parent.identifier),
    } %}
    {% for source in iceberg._parents(graph.sources)
        if (source.schema, source.identifier) == (parent.schema, parent.identifier) %}
        {% do facts.update({
            'is_source': true,
            'arrived': source.config.get('loaded_at_field') or source.get('loaded_at_field'),
        }) %}
    {% endfor %}
    {# With --defer a parent may come from another schema than the graph has it in. #}
    {% for node in iceberg._parents(graph.nodes)
        if node.alias == parent.identifier and not facts.is_source %}
        {% do facts.update({'node': node}) %}
    {% endfor %}
    {{ return(facts) }}
{% endmacro %}

{# What this model reads, of the graph's nodes or of its sources. #}
{% macro _parents(of_graph) %}
    {% set parents = [] %}
    {% for id in model.depends_on.nodes if id in of_graph %}
        {% do parents.append(of_graph[id]) %}
    {% endfor %}
    {{ return(parents) }}
{% endmacro %}

{% macro _check_call(call) %}
    {% for expression in call['keys'].values() if expression is not string %}
        {% do iceberg._refuse('rows_to_recompute(' ~ call.name ~ '): the key ' ~ expression ~ ' is not SQL') %}
    {% endfor %}
    {% if call.node and call.node.config.materialized in ('view', 'ephemeral') %}
        {% do iceberg._refuse(call.name ~ ' is ' ~ call.node.config.materialized ~ ', which has no history to '
            ~ 'learn from what changed. Call the macro on the tables behind it, or make it a table') %}
    {% elif call.is_source and not call.arrived %}
        {% do iceberg._refuse('the source ' ~ call.name ~ ' has no loaded_at_field, which tells its new rows') %}
    {% elif call.kind == 'new' and not call.is_source %}
        {% do iceberg._refuse('new_rows(' ~ call.name ~ ') is for sources. Use rows_to_recompute with the keys '
            ~ 'of ' ~ call.name) %}
    {% endif %}
{% endmacro %}

{#
    A parent that is read without either macro would be read once: what changes in it later does not
    reach the rows that are there. Who means that says so in meta.lookups.
#}
{% macro _check_parents(calls) %}
    {% set lookups = iceberg._listed((config.get('meta') or {}).get('lookups')) %}
    {% set called = [] %}
    {% for call in calls if call.name not in called | map('first') %}
        {% do called.append((call.name, call.parent.identifier)) %}
    {% endfor %}
    {% set called = called | map('last') | list %}
    {% for parent in iceberg._parents(graph.nodes) + iceberg._parents(graph.sources) %}
        {% set identifier = parent.get('identifier') or parent.alias %}
        {% if identifier in called %}
            {% do called.remove(identifier) %}
        {% elif parent.name not in lookups %}
            {% do iceberg._refuse(
                'it reads ' ~ parent.name ~ ' without rows_to_recompute, so rows that are built '
                ~ 'already would miss its changes. Wrap it, or, if they shall miss them, say '
                ~ "meta={'lookups': ['" ~ parent.name ~ "']}"
            ) %}
        {% endif %}
    {% endfor %}
{% endmacro %}
