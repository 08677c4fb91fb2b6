{#
    The keys that changed, of all calls of a model: a temporary view of the session. A key of a parent
    counts as it was and as it is, so what left a key touches it, too. `call` is the number of the
    call; keys that a call does not have are null.
#}
{% macro _touched_view() %}
    {{ return(adapter.quote(this.schema ~ '__' ~ this.identifier ~ '__touched')) }}
{% endmacro %}

{% macro _active(increment) %}
    {{ return(increment.calls | rejectattr('how', 'equalto', 'unchanged') | list) }}
{% endmacro %}

{% macro _create_touched_view(increment) %}
    {% set names, parts = [], [] %}
    {% for call in increment.calls %}
        {% do call.update({'number': loop.index}) %}
        {% do names.extend(call['keys'] if call.how != 'unchanged' else []) %}
    {% endfor %}
    {% for call in iceberg._active(increment) %}
        {% set columns = [call.number ~ ' as call'] %}
        {% for name in names | unique %}
            {% do columns.append(
                'null as ' ~ name if name not in call['keys'] else
                name if name != call.time_key else
                iceberg._spread(name, call.ahead, call.back) ~ ' as ' ~ name
            ) %}
        {% endfor %}
        {% set is_distinct = call.how != 'arrived' and not call.time_key %}
        {% do parts.append(
            'select ' ~ ('' if is_distinct else 'distinct ') ~ columns | join(', ') ~ ' from ('
            ~ iceberg._changed_keys(call, increment) ~ ')'
            ~ (' where ' ~ iceberg._is_complete(call, call['keys'], increment) if call.retention else '')
        ) %}
    {% endfor %}
    {% do run_query(
        'create or replace temporary view ' ~ iceberg._touched_view() ~ ' as ' ~ parts | join(' union all ')
    ) %}
{% endmacro %}

{# The days from so many before a time until so many after it. #}
{% macro _spread(time, before, after) %}
    {{ return(
        'explode_outer(sequence(date_sub(to_date(' ~ time ~ '), ' ~ before ~ '), date_add(to_date('
        ~ time ~ '), ' ~ after ~ ')))'
    ) }}
{% endmacro %}

{# The keys of the rows that changed in the parent of a call. #}
{% macro _changed_keys(call, increment) %}
    {% set parent = increment.plan.parents[call.name] %}
    {% set table = {'parent': call.table, 'keys': call['keys']} %}
    {% if call.how == 'arrived' %}
        {{ return(iceberg._keyed_rows(table, [iceberg._since(call, increment), iceberg._until(call, increment)])) }}
    {% endif %}
    {% set conditions = [iceberg._not_before(call.retention.column, call.retention)] if call.retention else [] %}
    {% if call.how == 'changelog' %}
        {% do table.update({'parent': call.table ~ ".changes with ('start-snapshot-id'='"
            ~ parent.read ~ "', 'end-snapshot-id'='" ~ parent.newest ~ "')"}) %}
        {% set signed = [iceberg._signed(table, conditions, '_change_type, _change_ordinal, _commit_snapshot_id',
            "if(_change_type = 'INSERT', 1, -1)", parent)] %}
    {% else %}
        {# The parent was rebuilt or set back: its two versions are compared. #}
        {% set signed = [iceberg._signed(table, conditions, none, '1', parent)] %}
        {% do table.update({'parent': call.table ~ ' version as of ' ~ parent.read}) %}
        {% do signed.append(iceberg._signed(table, conditions, none, '-1', parent)) %}
    {% endif %}
    {% set keys = call['keys'].keys() | join(', ') or 'true' %}
    {#
        A row that is rewritten as it was is no change: the rows that a key had and has are compared by
        their number and the sums of both halves of their hashes. Maps have no hash: then each row counts.
    #}
    {{ return(
        'select ' ~ keys ~ ' from (' ~ signed | join(' union all ') ~ ') group by ' ~ keys
        ~ ('' if iceberg._has_map(parent) else ' having sum(_sign) <> 0 '
            ~ 'or sum(_sign * shiftright(_row, 32)) <> 0 or sum(_sign * (_row & 4294967295L)) <> 0')
    ) }}
{% endmacro %}

{% macro _signed(table, conditions, metadata, sign, parent) %}
    {% set columns = [] %}
    {% for name, expression in table['keys'].items() %}
        {% do columns.append(expression ~ ' as ' ~ name) %}
    {% endfor %}
    {% set row = 'struct(*' ~ (' except (' ~ metadata ~ ')' if metadata else '') ~ ')' %}
    {% do columns.append((('1' if iceberg._has_map(parent) else 'xxhash64(' ~ row ~ ')') ~ ' as _row')) %}
    {% do columns.append(sign ~ ' as _sign') %}
    {{ return(
        'select ' ~ columns | join(', ') ~ ' from ' ~ table.parent
        ~ (' where ' ~ conditions | join(' and ') if conditions else '')
    ) }}
{% endmacro %}

{% macro _has_map(parent) %}
    {{ return('map<' in (parent.type or '')) }}
{% endmacro %}

{#
    Whether a row that is called `alias`, and has these keys, belongs to a key that changed: a condition.
    Keys that the row and a call share must be equal, nulls too. `reader` is the call that the row comes
    from, which may look back or ahead from the keys that changed.
#}
{% macro _is_touched(alias, names, increment, reader={}) %}
    {% set conditions = {} %}
    {% for call in iceberg._active(increment) %}
        {% set equal = [] %}
        {% for name in call['keys'] if name in names %}
            {% set by_day = name in (call.time_key, reader.time_key) %}
            {% set format = 'to_date(%s) <=> to_date(%s)' if by_day else '%s <=> %s' %}
            {% do equal.append(format % (alias ~ '.' ~ name, 'touched.' ~ name)) %}
        {% endfor %}
        {% do conditions.setdefault(equal | join(' and '), []).append(call.number) %}
    {% endfor %}
    {% set parts = [] %}
    {% for equal, numbers in conditions.items() %}
        {% set is_spread = reader.time_key and 'touched.' ~ reader.time_key ~ ')' in equal %}
        {% do parts.append(
            'exists (select ' ~ ('/*+ broadcast(touched) */ ' if increment.has_few_keys else '')
            ~ '1 from '
            ~ (iceberg._touched_with_reach(reader, names) if is_spread else iceberg._touched_view())
            ~ ' as touched where touched.call in (' ~ numbers | join(', ') ~ ')'
            ~ (' and ' ~ equal if equal else '') ~ ')'
        ) %}
    {% endfor %}
    {{ return('(' ~ parts | join(' or ') ~ ')') }}
{% endmacro %}

{# The touched keys with the days that `reader` needs for each. #}
{% macro _touched_with_reach(reader, names) %}
    {% set key = reader.time_key %}
    {{ return(
        '(select distinct * except (' ~ key ~ '), ' ~ iceberg._spread(key, reader.back, reader.ahead) ~ ' as '
        ~ key ~ ' from ' ~ iceberg._touched_view() ~ ')'
    ) }}
{% endmacro %}

{#
    Whether all rows that a key was made of are still there: a condition. What retention has cut into
    stays as it was computed last. Keys without a time cannot be judged, and are recomputed.
#}
{% macro _is_complete(call, names, increment, alias=none) %}
    {% set conditions = [] %}
    {% for name, expression in call['keys'].items()
        if name in names and iceberg._is_time(call, expression, increment.plan.parents[call.name].type) %}
        {% do conditions.append(iceberg._not_before((alias ~ '.' if alias else '') ~ name, call.retention)) %}
    {% endfor %}
    {{ return(conditions | join(' and ') or 'true') }}
{% endmacro %}

{% macro _not_before(column, retention) %}
    {{ return('not coalesce(' ~ column ~ " < timestamp '" ~ retention.before ~ "', false)") }}
{% endmacro %}
