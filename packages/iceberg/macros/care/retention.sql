{#
    How long rows stay: meta.retention = {column: event_time, days: 90} on a model, `retention` in a
    stream file. `iceberg_maintenance` removes what is older; within_retention keeps it away.
#}

{# The query of a model without rows that its retention would remove at once. #}
{% macro within_retention(sql) %}
    {% set retention = iceberg._declared_retention(model.name, config.get('meta') or {}) %}
    {% if not retention %}
        {{ return(sql) }}
    {% endif %}
    {% set column = adapter.quote(retention.column) %}
    {{ return(
        'select * from (\n' ~ sql ~ '\n) as within_retention\nwhere ' ~ column ~ " >= timestamp '"
        ~ iceberg._retention_cut(retention.days) ~ "' or " ~ column ~ ' is null'
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
    The first step of maintenance. The table says from when on it is whole, before any row goes: a model
    that reads it by its changes does not take the removal for news, and does not recompute what it
    was made of.
#}
{% macro _retire(table, dry_run) %}
    {% if not table.retention %}
        {{ return(none) }}
    {% endif %}
    {% set column, cut = table.retention.column, iceberg._retention_cut(table.retention.days) %}
    {% set condition = adapter.quote(column) ~ " < timestamp '" ~ cut ~ "'" %}
    {% set old = run_query('select 1 from ' ~ table.sql ~ ' where ' ~ condition ~ ' limit 1') %}
    {% if not old.rows %}
        {{ return(none) }}
    {% elif not dry_run %}
        {% do iceberg.before_retention(table, condition) %}
        {% do run_query(
            'alter table ' ~ table.sql ~ " set tblproperties ('" ~ iceberg._property('retained_from') ~ "' = '"
            ~ tojson({'column': column, 'before': cut}) ~ "')"
        ) %}
        {% do run_query('delete from ' ~ table.sql ~ ' where ' ~ condition) %}
    {% endif %}
    {{ return(
        ('would remove' if dry_run else 'removed') ~ ' rows with ' ~ column ~ ' before ' ~ cut[:10]
    ) }}
{% endmacro %}

{# For a project that has to note something before rows of a table go. #}
{% macro before_retention(table, condition) %}
    {{ return(adapter.dispatch('before_retention', 'iceberg')(table, condition)) }}
{% endmacro %}

{% macro default__before_retention(table, condition) %}{% endmacro %}

{# What retention has removed of a table, `{column, before}`; none where it is whole. #}
{% macro _retired_from(name) %}
    {% for row in run_query('show tblproperties ' ~ name).rows
        if row[0] == iceberg._property('retained_from') %}
        {{ return(fromjson(row[1])) }}
    {% endfor %}
    {{ return(none) }}
{% endmacro %}

{# Whether a table that no model makes has lost rows to a retention, or may lose some. #}
{% macro _has_retention(name) %}
    {% set marks = [iceberg._property('retained_from'), iceberg._property('retention')] %}
    {% for row in run_query('show tblproperties ' ~ name).rows
        if row[0] in marks and row[1] not in ('', '{}') %}
        {{ return(true) }}
    {% endfor %}
    {{ return(false) }}
{% endmacro %}

{# The properties of tables that this package reads and writes; a project may have a prefix of its own. #}
{% macro _property(name) %}
    {{ return(var('iceberg_property_prefix', 'dbt') ~ '.' ~ name) }}
{% endmacro %}
