{# The steps of table care. Each says in words what it did or would do, or nothing. #}

{#
    Small files of closed partitions into large ones. Iceberg commits what it has rewritten group by
    group, and only where the old files are still there: a merge that came first is not undone, its
    files wait for the next run. Files with deletes are rewritten, too, which applies the deletes.
#}
{% macro _compact(table, dry_run) %}
    {% if not table.policy.compact %}
        {{ return(none) }}
    {% endif %}
    {% set found = iceberg._worth_compacting(table) %}
    {% if not found.files %}
        {{ return(none) }}
    {% elif dry_run %}
        {{ return('would compact ' ~ iceberg._count(found.files, 'file')) }}
    {% endif %}
    {% set arguments = [table.argument] %}
    {% if table.policy.sort_by %}
        {% do arguments.append("strategy => 'sort'") %}
        {% do arguments.append("sort_order => '" ~ table.policy.sort_by | join(', ') ~ "'") %}
    {% endif %}
    {% if found.condition %}
        {% do arguments.append('where => "' ~ found.condition ~ '"') %}
    {% endif %}
    {% do arguments.append(iceberg._options({
        'target-file-size-bytes': iceberg._target_bytes(table),
        'min-input-files': table.policy.min_files,
        'delete-file-threshold': 1,
        'remove-dangling-deletes': 'true',
        'partial-progress.enabled': 'true',
    })) %}
    {% set rewritten, added, _, failed, deletes = iceberg._call('rewrite_data_files', arguments).rows[0] %}
    {% set words = [] %}
    {% if rewritten %}
        {% do words.append(
            'compacted ' ~ iceberg._count(rewritten | int, 'file') ~ ' into ' ~ (added | int)
        ) %}
    {% endif %}
    {% if deletes %}
        {% do words.append('removed ' ~ iceberg._count(deletes | int, 'delete file')) %}
    {% endif %}
    {% if failed %}
        {% do words.append(
            'left ' ~ iceberg._count(failed | int, 'file') ~ ' that another writer changed meanwhile'
        ) %}
    {% endif %}
    {{ return(words | join('; ')) }}
{% endmacro %}

{#
    How many files are worth it, and the condition that finds their partitions. A partition is closed
    when its time ended `closed_after` hours ago. A table without partitions by time counts as one,
    closed when the last commit of new rows is that long ago.
#}
{% macro _worth_compacting(table) %}
    {% set small = (iceberg._target_bytes(table) * 0.75) | int %}
    {% set fields = iceberg._partition_fields(table) %}
    {% set by = iceberg._time_partition(fields) %}
    {% set cut = iceberg._now() - modules.datetime.timedelta(hours=table.policy.closed_after) %}
    {% set worth %}
        select
            {{ by.number if by else 0 }} as number,
            count_if(content = 0 and file_size_in_bytes < {{ small }}) as small_files,
            count_if(content > 0) as delete_files
        from {{ table.sql }}.files
        {% if by %}where {{ by.number }} < {{ iceberg._number_of(by.unit, cut) }}{% endif %}
        group by {{ 'partition, ' if fields }}spec_id
        having small_files >= {{ table.policy.min_files }} or delete_files > 0
    {% endset %}
    {% set found = run_query(
        'select min(number) as first, max(number) as last, '
        ~ 'sum(small_files + delete_files) as files from ('
        ~ 'select *, number - dense_rank() over (order by number) as island from (' ~ worth ~ ')) '
        ~ 'group by island order by first'
    ) %}
    {% if not found.rows or (not by and iceberg._has_new_rows_since(table, cut)) %}
        {{ return({'files': 0}) }}
    {% endif %}
    {% set ranges = [] %}
    {% for first, last, _ in found.rows if by %}
        {% set column = adapter.quote(by.column) %}
        {% do ranges.append(
            '(' ~ column ~ ' >= ' ~ iceberg._time_literal(by, first | int)
            ~ ' and ' ~ column ~ ' < ' ~ iceberg._time_literal(by, (last | int) + 1) ~ ')'
        ) %}
    {% endfor %}
    {{ return({
        'files': found.columns['files'].values() | sum | int,
        'condition': ranges | join(' or '),
    }) }}
{% endmacro %}

{% macro _has_new_rows_since(table, moment) %}
    {% set found = run_query(
        'select 1 from ' ~ table.sql ~ ".snapshots where operation <> 'replace' "
        ~ "and committed_at > timestamp '" ~ moment.isoformat() ~ "' limit 1"
    ) %}
    {{ return(found.rows | length > 0) }}
{% endmacro %}

{# Merge-on-read writers leave many position deletes in open partitions, too: they become few. #}
{% macro _rewrite_delete_files(table, seen, dry_run) %}
    {% if not table.policy.compact or seen.position_deletes < table.policy.min_files %}
        {{ return(none) }}
    {% elif dry_run %}
        {{ return('would rewrite ' ~ iceberg._count(seen.position_deletes, 'position delete file')) }}
    {% endif %}
    {% set options = iceberg._options({'min-input-files': table.policy.min_files}) %}
    {% set done = iceberg._call('rewrite_position_delete_files', [table.argument, options]) %}
    {% set rewritten = done.rows[0][0] | int %}
    {{ return('rewrote ' ~ iceberg._count(rewritten, 'position delete file') if rewritten else none) }}
{% endmacro %}

{# A reader opens every manifest. A few are quick; Iceberg's own writers wait for a hundred. #}
{% macro _rewrite_manifests(table, seen, dry_run) %}
    {% if seen.small_manifests < 20 %}
        {{ return(none) }}
    {% elif dry_run %}
        {{ return('would join ' ~ iceberg._count(seen.small_manifests, 'manifest')) }}
    {% endif %}
    {% set old, new = iceberg._call('rewrite_manifests', [table.argument]).rows[0].values() %}
    {% if not old %}
        {{ return(none) }}
    {% endif %}
    {{ return('joined ' ~ iceberg._count(old | int, 'manifest') ~ ' into ' ~ (new | int)) }}
{% endmacro %}

{# Files that no snapshot knows. The age keeps the files of a commit under way. #}
{% macro _remove_orphans(table, dry_run) %}
    {% set cut = iceberg._now() - modules.datetime.timedelta(days=table.policy.orphan_days) %}
    {% set found = iceberg._call('remove_orphan_files', [
        table.argument,
        "older_than => timestamp '" ~ cut.isoformat() ~ "'",
        'dry_run => ' ~ dry_run | string | lower,
    ]) %}
    {% set count = found.rows | length %}
    {{ return(
        ('would remove ' if dry_run else 'removed ') ~ iceberg._count(count, 'orphan file') if count else none
    ) }}
{% endmacro %}

{% macro _call(procedure, arguments) %}
    {{ return(run_query('call system.' ~ procedure ~ '(' ~ arguments | join(', ') ~ ')')) }}
{% endmacro %}

{% macro _options(options) %}
    {% set pairs = [] %}
    {% for key, value in options.items() %}
        {% do pairs.append("'" ~ key ~ "', '" ~ value ~ "'") %}
    {% endfor %}
    {{ return('options => map(' ~ pairs | join(', ') ~ ')') }}
{% endmacro %}

{% macro _count(number, what) %}
    {{ return('{:,} {}{}'.format(number, what, '' if number == 1 else 's')) }}
{% endmacro %}

{# What is declared; else what the table's own writers aim at; else Iceberg's default. #}
{% macro _target_bytes(table) %}
    {% set mb = table.policy.target_file_mb %}
    {% set own = table.properties.get('write.target-file-size-bytes', 512 * 2 ** 20) | int %}
    {{ return(mb * 2 ** 20 if mb else own) }}
{% endmacro %}

{% macro _now() %}
    {{ return(modules.datetime.datetime.now(modules.pytz.utc)) }}
{% endmacro %}

{# --- partitions by time: Iceberg numbers years, months, days and hours from 1970 on ----------- #}

{# The fields as they were declared, such as days(event_time), each with its column's type. #}
{% macro _partition_fields(table) %}
    {% set types, fields = {}, [] %}
    {% for row in run_query('describe table ' ~ table.sql).rows %}
        {% if row['col_name'].startswith('Part ') and '# Partitioning' in types %}
            {% set column = row['data_type'].split('(')[-1].rstrip(')').split(', ')[-1] %}
            {% do fields.append({
                'text': row['data_type'], 'column': column, 'type': types.get(column)
            }) %}
        {% endif %}
        {% do types.setdefault(row['col_name'], row['data_type']) %}
    {% endfor %}
    {{ return(fields) }}
{% endmacro %}

{# The first field by time, with its unit, and its number in the metadata tables. #}
{% macro _time_partition(fields) %}
    {% for field in fields %}
        {% set unit = field.text.split('(')[0] %}
        {% if unit in ('years', 'months', 'days', 'hours') %}
            {% set number = 'partition.' ~ adapter.quote(field.column ~ '_' ~ unit[:-1]) %}
        {% elif field.type == 'date' and field.text == field.column %}
            {% set unit, number = 'days', 'partition.' ~ adapter.quote(field.column) %}
        {% endif %}
        {% if number %}
            {% set number = 'unix_date(' ~ number ~ ')' if unit == 'days' else number %}
            {{ return({
                'column': field.column, 'type': field.type, 'unit': unit, 'number': number
            }) }}
        {% endif %}
    {% endfor %}
    {{ return(none) }}
{% endmacro %}

{# The number of the year, month, day or hour of a moment. #}
{% macro _number_of(unit, moment) %}
    {% if unit == 'years' %}
        {{ return(moment.year - 1970) }}
    {% elif unit == 'months' %}
        {{ return((moment.year - 1970) * 12 + moment.month - 1) }}
    {% endif %}
    {{ return((moment.timestamp() // (86400 if unit == 'days' else 3600)) | int) }}
{% endmacro %}

{# The first moment of the year, month, day or hour of this number, for its column. #}
{% macro _time_literal(by, number) %}
    {% if by.unit == 'years' %}
        {% set start = '%04d-01-01 00:00:00' % (1970 + number) %}
    {% elif by.unit == 'months' %}
        {% set start = '%04d-%02d-01 00:00:00' % (1970 + number // 12, number % 12 + 1) %}
    {% else %}
        {% set seconds = number * (86400 if by.unit == 'days' else 3600) %}
        {% set start = modules.datetime.datetime(1970, 1, 1)
            + modules.datetime.timedelta(seconds=seconds) %}
    {% endif %}
    {% set text = start | string %}
    {{ return({
        'date': "date '" ~ text[:10] ~ "'",
        'timestamp_ntz': "timestamp_ntz '" ~ text ~ "'",
    }.get(by.type, "timestamp '" ~ text ~ "+00:00'")) }}
{% endmacro %}
