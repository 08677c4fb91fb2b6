{#
    The increment of a model as its source has it, before the model's own logic: a temporary view of
    the model's session. The days in it are kept in the session too, so that they are counted once
    and known to whoever plans a read: the model itself (on_touched_days) and the merge.
#}
{% macro increment_view(source) %}
    {{ return(model.name ~ '__increment__' ~ source.identifier) }}
{% endmacro %}

{% macro _keep_increment(source, query, day) %}
    {% set view = increment_view(source) %}
    {% do run_query('create or replace temporary view ' ~ view ~ ' as ' ~ query) %}
    {% if day %}
        {% set found = run_query(
            'select distinct cast(cast(' ~ day ~ ' as date) as string) as day from ' ~ view
            ~ ' order by day nulls last'
        ) %}
    {% else %}
        {% set found = run_query('select cast(null as string) as day from ' ~ view ~ ' limit 1') %}
    {% endif %}
    {% set days = found.columns[0].values() | map('default', 'null', true) | list %}
    {% do run_query(
        'set `' ~ _touched_setting(source.identifier) ~ '` = ' ~ (days | join(',') or 'none')
    ) %}
{% endmacro %}

{% macro _touched_setting(identifier) %}
    {{ return(_increment_setting('touched', identifier)) }}
{% endmacro %}

{#
    Where the session keeps something about an increment. Names are hashed: Spark hides the values of
    settings whose names hold words such as `url`, and `fct_sensor_hourly` does.
#}
{% macro _increment_setting(what, identifier) %}
    {{ return('headwater.' ~ what ~ '.' ~ local_md5(model.name ~ '.' ~ identifier)) }}
{% endmacro %}

{#
    The days that the increments of this model touch, in their order, `null` for rows without one;
    an empty list when nothing is new, none when no increment was taken.
#}
{% macro touched_days() %}
    {% set state = namespace(is_taken=false) %}
    {% set days = [] %}
    {% for parent in model.depends_on.nodes %}
        {% set identifier = graph.nodes[parent].alias if parent in graph.nodes
            else graph.sources[parent].identifier %}
        {% set value = run_query('set `' ~ _touched_setting(identifier) ~ '`').rows[0][1] %}
        {% if value != '<undefined>' %}
            {% set state.is_taken = true %}
            {% do days.extend(value.split(',') if value != 'none' else []) %}
        {% endif %}
    {% endfor %}
    {{ return(days | unique | sort if state.is_taken else none) }}
{% endmacro %}

{#
    A condition on a time or date column for the days that the increments of this model touch, so
    that Iceberg skips the files of all others. `offsets` names the days to read for a touched one:
    [-1, 0, 1] for the day itself and its neighbours. Write it behind the increments.
#}
{% macro on_touched_days(column, offsets=[0], is_date=false) %}
    {% if execute and is_incremental() %}
        {{ return(days_condition(column, touched_days(), offsets, is_date)) }}
    {% endif %}
    {{ return('true') }}
{% endmacro %}

{#
    Ranges, since Iceberg skips files by them: days that follow each other are one, and when there are
    many ranges, the whole span is.
#}
{% macro days_condition(column, touched, offsets, is_date) %}
    {% set days = [] %}
    {% for day in touched if day != 'null' %}
        {% for offset in offsets %}
            {% do days.append(
                modules.datetime.date.fromisoformat(day) + modules.datetime.timedelta(days=offset)
            ) %}
        {% endfor %}
    {% endfor %}
    {% set spans = [] %}
    {% for day in days | unique | sort %}
        {% if spans and (day - spans[-1][-1]).days == 1 %}
            {% do spans[-1].append(day) %}
        {% else %}
            {% do spans.append([day]) %}
        {% endif %}
    {% endfor %}
    {% if spans | length > 31 %}
        {% set spans = [[spans[0][0], spans[-1][-1]]] %}
    {% endif %}
    {% set ranges = [column ~ ' is null'] if 'null' in touched else [] %}
    {% for span in spans %}
        {% do ranges.append(_between(column, span[0], span[-1], is_date)) %}
    {% endfor %}
    {{ return('(' ~ ranges | join(' or ') ~ ')' if ranges else 'false') }}
{% endmacro %}

{% macro _between(column, first_day, last_day, is_date) %}
    {% set after = (last_day + modules.datetime.timedelta(days=1)).isoformat() %}
    {% set kind = 'date' if is_date else 'timestamp' %}
    {{ return(
        '(' ~ column ~ ' >= ' ~ kind ~ " '" ~ first_day.isoformat() ~ "' and "
        ~ column ~ ' < ' ~ kind ~ " '" ~ after ~ "')"
    ) }}
{% endmacro %}
