{#
    How long rows stay: meta.retention = {column: event_time, days: 90} on a model, `retention` in a
    stream file. `iceberg_maintenance` removes what is older; within_retention keeps it away.
#}

{# The query of a model without rows that its retention would remove at once. #}
{% macro within_retention(sql) %}
    {% set retention = _declared_retention(model.name, config.get('meta') or {}) %}
    {% if not retention %}
        {{ return(sql) }}
    {% endif %}
    {% set column = adapter.quote(retention.column) %}
    {{ return(
        'select * from (\n' ~ sql ~ '\n) as within_retention\nwhere ' ~ column ~ " >= timestamp '"
        ~ _retention_cut(retention.days) ~ "' or " ~ column ~ ' is null'
    ) }}
{% endmacro %}

{# Midnight UTC, so that whole partitions go and no window up to a day is cut in half. #}
{% macro _retention_cut(days) %}
    {% set today = modules.datetime.datetime.now(modules.pytz.utc).date() %}
    {{ return((today - modules.datetime.timedelta(days=days)).isoformat() ~ ' 00:00:00+00:00') }}
{% endmacro %}

{% macro _declared_retention(name, meta) %}
    {% set retention = meta.get('retention') %}
    {% if not retention %}
        {{ return(none) }}
    {% endif %}
    {% set days = retention.get('days') %}
    {% if retention.keys() | sort | list != ['column', 'days'] or days is not integer or days < 1 %}
        {{ exceptions.raise_compiler_error(
            name ~ ': meta.retention is ' ~ retention
            ~ '; it has a column, and days from 1, such as {column: event_time, days: 90}'
        ) }}
    {% endif %}
    {{ return(retention) }}
{% endmacro %}

{#
    The first step of maintenance. The summary of the delete says what went, so that a model which
    reads this table by its changes (changed_rows) does not take it for news.
#}
{% macro _retire(table, dry_run) %}
    {% if not table.retention %}
        {{ return(none) }}
    {% endif %}
    {% set column, cut = table.retention.column, _retention_cut(table.retention.days) %}
    {% set condition = adapter.quote(column) ~ " < timestamp '" ~ cut ~ "'" %}
    {% set old = run_query('select 1 from ' ~ table.sql ~ ' where ' ~ condition ~ ' limit 1') %}
    {% if not old.rows %}
        {{ return(none) }}
    {% elif not dry_run %}
        {% if table.is_bronze %}
            {% do _remember_retired(table, condition) %}
        {% endif %}
        {% set mark = '`spark.sql.iceberg.snapshot-property.headwater.retention`' %}
        {% do run_query('set ' ~ mark ~ ' = ' ~ tojson({'column': column, 'before': cut})) %}
        {% do run_query('delete from ' ~ table.sql ~ ' where ' ~ condition) %}
        {% do run_query('reset ' ~ mark) %}
    {% endif %}
    {{ return(
        ('would remove' if dry_run else 'removed') ~ ' rows with ' ~ column ~ ' before ' ~ cut[:10]
    ) }}
{% endmacro %}

{#
    The offsets that go, in the table's properties, before they go: whoever expires every marked
    snapshot later, the stream must not read these records again.
#}
{% macro _remember_retired(table, condition) %}
    {% set retired = fromjson(table.properties.get('headwater.retired', '{}')) %}
    {% set found = run_query(
        "select concat('= ', _kafka_topic) as topic, cast(_kafka_partition as int) as place, "
        ~ 'max(_kafka_offset) + 1 as behind from ' ~ table.sql
        ~ ' where ' ~ condition ~ ' group by _kafka_topic, _kafka_partition'
    ) %}
    {% for topic, place, behind in found.rows %}
        {% set known = retired.setdefault(topic[2:], {}) %}
        {% set place = place | int | string %}
        {% do known.update({place: [known.get(place, 0), behind | int] | max}) %}
    {% endfor %}
    {% do run_query(
        'alter table ' ~ table.sql ~ " set tblproperties ('headwater.retired' = '"
        ~ tojson(retired) ~ "')"
    ) %}
{% endmacro %}

{#
    A condition for changelog rows of a table, by the marks that its retention has left in the
    summaries of its commits: without the rows that it has removed, and without older changes of the
    same rows, since what they touched cannot be computed any more.
#}
{% macro _not_retired(marks) %}
    {% set cuts = {} %}
    {% for mark in marks %}
        {% set mark = fromjson(mark) %}
        {% do cuts.update({mark.column: [cuts.get(mark.column, ''), mark.before] | max}) %}
    {% endfor %}
    {% set conditions = ['true'] %}
    {% for column, before in cuts.items() %}
        {% do conditions.append(
            'not coalesce(' ~ adapter.quote(column) ~ " < timestamp '" ~ before ~ "', false)"
        ) %}
    {% endfor %}
    {{ return(conditions | join(' and ')) }}
{% endmacro %}
