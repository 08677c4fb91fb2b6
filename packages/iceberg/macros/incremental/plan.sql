{#
    What an increment has to do, from the metadata of the model's table and of its parents: one
    statement. What a model has read of its parents stands in the summary of each commit that it makes
    (macros/adapter/commit.sql), so a commit and its position are one.

    outcome: `first` (there is no table), `nothing` (no parent has anything new), `increment`, or
    `whole` (what changed cannot be known).
#}
{% macro _plan(increment, existing) %}
    {% set parents, stamp, bytes = iceberg._positions(increment.calls, existing) %}
    {% set unknown = [] %}
    {% for name, parent in parents.items() %}
        {% do parent.update({'how': iceberg._how_to_read(parent)}) %}
        {% if parent.how == 'unknown' %}
            {% do unknown.append(name) %}
        {% endif %}
    {% endfor %}
    {% set ways = parents.values() | map(attribute='how') | unique | list %}
    {% do increment.update({'plan': {
        'parents': parents,
        'stamp': stamp,
        'bytes': bytes,
        'unknown': unknown,
        'outcome': 'first' if existing is none else
            'whole' if unknown else
            'nothing' if ways == ['unchanged'] else 'increment',
    }}) %}
    {% for call in increment.calls %}
        {% do call.update({
            'how': parents[call.name].how,
            'time_key': iceberg._time_key(call, parents),
            'retention': iceberg._retention_of(call) if increment.plan.outcome == 'increment' else none,
        }) %}
    {% endfor %}
{% endmacro %}

{#
    What is known of each parent: its newest position, the one that this model has read, its columns;
    and the newest stamp of the model's own table. Plain scans of metadata: each join or aggregate
    would cost a Spark job.
#}
{% macro _positions(calls, existing) %}
    {% set parts, parents = [], {} %}
    {% do parts.append(iceberg._own_line(this)) if existing is not none %}
    {% for call in calls if call.name not in parents %}
        {% do parents.update({call.name: {'is_source': call.is_source}}) %}
        {% do parts.append(
            iceberg._newest_arrival(call) if call.is_source else iceberg._line(call.name, call.table)
        ) %}
        {% do parts.append(iceberg._type_of(call)) %}
    {% endfor %}
    {% set lines = {} %}
    {% for name, id, at, text in run_query(parts | join(' union all ')).rows %}
        {% do lines.setdefault(name, []).append((at or '', id, text)) %}
    {% endfor %}
    {% set stamps = {} %}
    {% for size, id, stamp in lines.get('own stamp', []) %}
        {% do stamps.update({id: [stamp, size[1:] | int]}) %}
    {% endfor %}
    {% set stamped = lines.get('own', []) | selectattr(1, 'in', stamps) | sort | list %}
    {% set stamp, bytes = stamps[stamped[-1][1]] if stamped else ['{}', 0] %}
    {% set stamp = fromjson(stamp) %}
    {% for name, parent in parents.items() %}
        {% set line = lines.get(name, []) | sort | list %}
        {% set read = (stamp.read or {}).get(name) %}
        {% do parent.update({
            'newest': ((line | rejectattr(2, 'equalto', 'aside') | list or [('', 'p', '')])[-1][1]
                or 'p')[1:],
            'reach': ((line | selectattr(1, 'equalto', 'p' ~ read) | list or [('', '', none)])[-1][2]),
            'type': lines['type of ' ~ name][0][2],
            'read': read,
        }) %}
    {% endfor %}
    {{ return((parents, stamp, bytes)) }}
{% endmacro %}

{# Letters before the numbers: dbt would round them. #}
{% macro _line(name, table) %}
    {{ return(
        "select '" ~ name ~ "' as name, concat('p', snapshot_id) as id, "
        ~ "concat('t', unix_micros(made_current_at)) as at, "
        ~ "if(is_current_ancestor, 'in its line', 'aside') as text from " ~ table ~ '.history'
    ) }}
{% endmacro %}

{% macro _own_line(table) %}
    {{ return(
        iceberg._line('own', table) ~ ' where is_current_ancestor union all '
        ~ "select 'own stamp', concat('p', snapshot_id), concat('b', summary['total-files-size']), "
        ~ "summary['dbt'] from " ~ table
        ~ ".snapshots where get_json_object(summary['dbt'], '$.read') is not null"
    ) }}
{% endmacro %}

{# Iceberg answers this from its metadata; no row is read. #}
{% macro _newest_arrival(call) %}
    {{ return(
        "select '" ~ call.name ~ "' as name, concat('p', unix_micros(max(" ~ call.arrived
        ~ '))) as id, null as at, null as text from ' ~ call.table
    ) }}
{% endmacro %}

{# The columns of a table with their types, as a text: `struct<ticker:string,...>`. #}
{% macro _type_of(call) %}
    {{ return(
        "select 'type of " ~ call.name ~ "', null, null, typeof(struct(a_row.*)) from (select 1) "
        ~ 'as always left join (select * from ' ~ call.table ~ ' where false) as a_row on true'
    ) }}
{% endmacro %}

{# How to learn what changed in a parent since the position that this model has read. #}
{% macro _how_to_read(parent) %}
    {% if parent.read is none %}
        {{ return('unknown') }}
    {% elif parent.read == parent.newest %}
        {{ return('unchanged') }}
    {% elif parent.is_source %}
        {{ return(
            'arrived' if parent.newest and (parent.read or '0') | int < parent.newest | int
            else 'unknown'
        ) }}
    {% elif parent.read == '' %}
        {{ return('unknown') }}
    {% endif %}
    {{ return({'in its line': 'changelog', 'aside': 'compared'}.get(parent.reach, 'unknown')) }}
{% endmacro %}

{# The positions to write into the commit. #}
{% macro _positions_to_keep(increment) %}
    {% set read = {} %}
    {% for name, parent in (increment.plan.parents if increment.plan else {}).items() %}
        {% do read.update({name: parent.newest}) %}
    {% endfor %}
    {{ return(read) }}
{% endmacro %}

{# The one key of a call with a time, where it looks back or ahead. #}
{% macro _time_key(call, parents) %}
    {% if not call.back and not call.ahead %}
        {{ return(none) }}
    {% endif %}
    {% set names = [] %}
    {% for name, expression in call['keys'].items()
        if iceberg._is_time(call, expression, parents[call.name].type) %}
        {% do names.append(name) %}
    {% endfor %}
    {% if names | length != 1 %}
        {% do iceberg._refuse('rows_to_recompute(' ~ call.name ~ ') looks back or ahead, so exactly one of its '
            ~ 'keys must be a time; found: ' ~ (names | join(', ') or 'none')) %}
    {% endif %}
    {{ return(names[0]) }}
{% endmacro %}

{# Whether an expression is one of this package's times, or a column with a time or a date. #}
{% macro _is_time(call, expression, type) %}
    {% set known = iceberg._column_and_days(expression) %}
    {{ return(
        known is not none and (
            known.column != expression | trim
            or modules.re.search('[<,]' ~ known.column ~ ':(timestamp|date)', type or '') is not none
        )
    ) }}
{% endmacro %}

{#
    What to do where changes cannot be known: replace the table by what can be computed now, unless
    that could lose rows whose sources are gone.
#}
{% macro _accept_unknown_changes(increment) %}
    {% set plan = increment.plan %}
    {% set way = var('unknown_changes', 'stop') %}
    {% set losses = iceberg._what_a_rebuild_loses() if not plan.stamp.is_partial else [] %}
    {% set problem = 'what changed in ' ~ plan.unknown | join(' and ') ~ ' since the last run of '
        ~ model.name ~ ' cannot be known (never read, or its snapshot has expired)' %}
    {% if losses and way == 'stop' %}
        {% do iceberg._refuse(
            problem ~ ', and a rebuild could lose rows: ' ~ losses | join('; ')
            ~ '. Nothing was changed. To recompute what can be and keep all other rows: dbt run '
            ~ '--select ' ~ model.name ~ " --vars 'unknown_changes: keep'. To rebuild it from what is "
            ~ 'left: dbt run --full-refresh --select ' ~ model.name
        ) %}
    {% else %}
        {{ log(problem ~ ', so all of it is recomputed'
            ~ ('; rows of which nothing is left stay' if losses else ''), info=true) }}
    {% endif %}
    {{ return('keep' if losses else 'replace') }}
{% endmacro %}

{# Why the table could hold more than can be computed now. #}
{% macro _what_a_rebuild_loses() %}
    {% set losses = ['full_refresh is false'] if config.get('full_refresh') == false else [] %}
    {% set upstream, to_visit = [], model.depends_on.nodes | list %}
    {% for _ in range(graph.nodes | length + graph.sources | length) if to_visit %}
        {% set id = to_visit.pop() %}
        {% if id in graph.nodes %}
            {% set node = graph.nodes[id] %}
            {% do to_visit.extend(node.depends_on.nodes | reject('in', upstream)) %}
            {% if (node.config.meta or {}).get('retention') and id not in upstream %}
                {% do losses.append(node.name ~ ' has a retention') %}
            {% endif %}
        {% elif id in graph.sources and id not in upstream %}
            {% set source = graph.sources[id] %}
            {% if iceberg._has_retention(source.schema ~ '.' ~ source.identifier) %}
                {% do losses.append(source.identifier ~ ' has a retention') %}
            {% endif %}
        {% endif %}
        {% do upstream.append(id) %}
    {% endfor %}
    {{ return(losses) }}
{% endmacro %}

{# What retention has removed of the parent of a call: `{column, before}`. #}
{% macro _retention_of(call) %}
    {% set may_have = call.kind == 'recomputed' and (
        call.is_source or (call.node and (call.node.config.meta or {}).get('retention'))
    ) %}
    {{ return(iceberg._retired_from(call.table) if may_have else none) }}
{% endmacro %}
