{#
    Table care: rows past their retention, small files, delete files, manifests, old snapshots and
    orphan files, of every table of the project or of those that are named. What needs nothing is
    left alone. Tables of the schemas in the variable `iceberg_source_schemas` are looked after, too;
    what is declared for them stands in their properties, as JSON.

        dbt run-operation iceberg_maintenance
        dbt run-operation iceberg_maintenance --args '{table: silver.stg_stocks__prices, dry_run: true}'

    Each step is one commit of Iceberg's own or several, each whole in itself; so a run that ends
    early leaves every table right, and the next run goes on.
#}
{% macro iceberg_maintenance(table=none, dry_run=false) %}
    {% if execute %}
        {% set rows = [] %}
        {% for one in iceberg._maintained_tables(table) %}
            {% do rows.append(iceberg._maintain(one, dry_run)) %}
        {% endfor %}
        {% do iceberg._print_maintenance(rows) %}
    {% endif %}
{% endmacro %}

{# The names of these tables, or of all, after a look at every policy. #}
{% macro iceberg_maintenance_tables(table=none) %}
    {% if execute %}
        {% set names = iceberg._maintained_tables(table) | map(attribute='name') | list %}
        {{ log(tojson({'iceberg.maintenance.tables': names})) }}
        {{ log(names | join('\n'), info=true) }}
    {% endif %}
{% endmacro %}

{# Every Iceberg table of a model, seed or snapshot that is there, and those of the source schemas. #}
{% macro _maintained_tables(wanted) %}
    {% set tables_in, found = {}, {} %}
    {% for schema in var('iceberg_source_schemas', []) %}
        {% do tables_in.update({schema: iceberg._tables_in(schema)}) %}
        {% for name in tables_in[schema] %}
            {% do found.update({schema ~ '.' ~ name: none}) %}
        {% endfor %}
    {% endfor %}
    {% for node in graph.nodes.values() if node.config.get('file_format') == 'iceberg'
        and node.resource_type in ('model', 'seed', 'snapshot')
        and node.config.materialized not in ('view', 'ephemeral') %}
        {% if node.schema not in tables_in %}
            {% do tables_in.update({node.schema: iceberg._tables_in(node.schema)}) %}
        {% endif %}
        {% if node.alias in tables_in[node.schema] %}
            {% do found.update({node.schema ~ '.' ~ node.alias: node}) %}
        {% endif %}
    {% endfor %}
    {% set tables = [] %}
    {% for name in ([wanted] if wanted is string else wanted) or found %}
        {% if name not in found %}
            {{ exceptions.raise_compiler_error(
                'there is no table ' ~ name ~ ' to maintain; there are: '
                ~ (found.keys() | join(', ') or 'none yet')
            ) }}
        {% endif %}
        {% do tables.append(iceberg._table(name, found)) %}
    {% endfor %}
    {{ return(tables) }}
{% endmacro %}

{% macro _tables_in(schema) %}
    {% set there = run_query("show namespaces like '" ~ schema ~ "'") %}
    {% if not there.rows %}
        {{ return([]) }}
    {% endif %}
    {% set found = run_query('show tables in ' ~ adapter.quote(schema)) %}
    {{ return(found.rows | map(attribute='tableName') | map('string') | list) }}
{% endmacro %}

{# One table, with all that is declared for it. #}
{% macro _table(name, found) %}
    {% set node = found[name] %}
    {% set properties = {} %}
    {% for row in run_query('show tblproperties ' ~ iceberg._in_sql(name)).rows %}
        {% do properties.update({row['key']: row['value']}) %}
    {% endfor %}
    {% if node %}
        {% set meta = node.config.get('meta', {}) %}
        {% set declared = meta.get('iceberg_maintenance', {}) %}
        {% set retention = iceberg._declared_retention(name, meta) %}
    {% else %}
        {% set declared = fromjson(properties.get(iceberg._property('maintenance'), '{}')) %}
        {% set kept = fromjson(properties.get(iceberg._property('retention'), '{}')) %}
        {% set retention = {'column': var('iceberg_arrival_column'), 'days': kept.days} if kept else none %}
    {% endif %}
    {{ return({
        'name': name,
        'sql': iceberg._in_sql(name),
        'argument': "table => '" ~ iceberg._in_sql(name) ~ "'",
        'is_source': node is none,
        'properties': properties,
        'policy': iceberg._maintenance_policy(name, declared, node is none),
        'retention': retention,
        'readers': iceberg._readers(name, found),
    }) }}
{% endmacro %}

{% macro _in_sql(name) %}
    {% set schema, identifier = name.split('.') %}
    {{ return(adapter.quote(schema) ~ '.' ~ adapter.quote(identifier)) }}
{% endmacro %}

{# The tables of incremental models that read this one. #}
{% macro _readers(name, found) %}
    {% set ids = [] %}
    {% for source in graph.sources.values() if source.schema ~ '.' ~ source.identifier == name %}
        {% do ids.append(source.unique_id) %}
    {% endfor %}
    {% if found[name] %}
        {% do ids.append(found[name].unique_id) %}
    {% endif %}
    {% set readers = [] %}
    {% for other, node in found.items() if node and node.config.materialized == 'incremental' %}
        {% if node.depends_on.nodes | select('in', ids) | list %}
            {% do readers.append(iceberg._in_sql(other)) %}
        {% endif %}
    {% endfor %}
    {{ return(readers) }}
{% endmacro %}

{# All steps for one table: what was done, in words, and its size before and after. #}
{% macro _maintain(table, dry_run) %}
    {% set before = iceberg._look(table) %}
    {% set done = [iceberg._retire(table, dry_run), iceberg._compact(table, dry_run)] | select | list %}
    {% set now = iceberg._look(table) if done and not dry_run else before %}
    {% set done = (done + [
        iceberg._rewrite_delete_files(table, now, dry_run),
        iceberg._rewrite_manifests(table, now, dry_run),
        iceberg._expire(table, now, dry_run),
        iceberg._remove_orphans(table, dry_run),
    ]) | select | list %}
    {% set row = {
        'table': table.name,
        'before': before,
        'after': iceberg._look(table) if done and not dry_run else before,
        'done': done | join('; ') or 'nothing to do',
    } %}
    {{ log(tojson({'iceberg.maintenance': row})) }}
    {{ return(row) }}
{% endmacro %}

{# What the metadata tables say, in one statement; no data file is opened. #}
{% macro _look(table) %}
    {% set small_manifest = 4 * 2 ** 20 %}
    {% set found = run_query(
        'select count(*) as files, coalesce(sum(file_size_in_bytes), 0) as bytes, '
        ~ 'count_if(content = 1) as position_deletes, '
        ~ '(select count(*) from ' ~ table.sql ~ '.manifests where length < ' ~ small_manifest
        ~ ') as small_manifests, '
        ~ '(select count(*) from ' ~ table.sql ~ '.snapshots) as snapshots, '
        ~ '(select coalesce(min(unix_seconds(committed_at)), 0) from ' ~ table.sql
        ~ '.snapshots) as oldest '
        ~ 'from ' ~ table.sql ~ '.files'
    ) %}
    {% set seen = {} %}
    {% for name, value in found.rows[0].dict().items() %}
        {% do seen.update({name: value | int}) %}
    {% endfor %}
    {{ return(seen) }}
{% endmacro %}

{# Plain text, for whoever runs plain dbt. #}
{% macro _print_maintenance(rows) %}
    {% set width = ([5] + rows | map(attribute='table') | map('length') | list) | max %}
    {% set head = 'table' ~ ' ' * (width - 5) %}
    {{ log(head ~ '%19s%23s%17s  %s' % ('files', 'MB', 'snapshots', 'what was done'), info=true) }}
    {% for row in rows %}
        {% set old, new = row.before, row.after %}
        {{ log(
            row.table ~ ' ' * (width - row.table | length)
            ~ '%8d -> %7d%10.2f -> %9.2f%7d -> %6d  %s' % (
                old.files, new.files, old.bytes / 1e6, new.bytes / 1e6,
                old.snapshots, new.snapshots, row.done
            ), info=true
        ) }}
    {% endfor %}
{% endmacro %}
