{#
    Old snapshots, by their ids: what is not in the list stays, whatever happens meanwhile. Iceberg's
    own rules are put out of play by a date before every snapshot.
#}
{% macro _expire(table, seen, dry_run) %}
    {% set cut = iceberg._now() - modules.datetime.timedelta(days=table.policy.time_travel_days) %}
    {% if seen.snapshots <= table.policy.keep_snapshots or seen.oldest >= cut.timestamp() %}
        {{ return(none) }}
    {% endif %}
    {% set found = run_query(iceberg._expirable(table, cut)) %}
    {% set ids = found.columns[0].values() | map('string') | list %}
    {% if not ids %}
        {{ return(none) }}
    {% elif not dry_run %}
        {% do iceberg._call('expire_snapshots', [
            table.argument,
            "older_than => timestamp '1970-01-01 00:00:00'",
            'snapshot_ids => array(' ~ ids | join(', ') ~ ')',
        ]) %}
    {% endif %}
    {{ return(('would expire ' if dry_run else 'expired ') ~ iceberg._count(ids | length, 'snapshot')) }}
{% endmacro %}

{#
    The snapshots that nobody was promised and nobody needs:
    - promised are those that were current at any time in the last `time_travel_days`, also one that
      is older and was current when that time began, and the newest `keep_snapshots`;
    - a branch or a tag keeps what it refers to, and a branch all that is not in main's line;
    - a mark keeps its snapshot and every later one of main's line, since whoever reads it follows
      the line back to it: the newest with what the model has read, the newest with each of the
      project's own marks (the variable `iceberg_kept_marks`), and what other models have last
      read of this one.
#}
{% macro _expirable(table, cut) %}
    {# A model that stood still for so long must not keep files for ever; it computes all anew. #}
    {% set forgotten = (cut - modules.datetime.timedelta(days=30)) %}
    {% set read = "get_json_object(s.summary['dbt'], '$.read[\\'" ~ table.name ~ "\\']')" %}
    with line as (
        select snapshot_id, committed_at, summary
        from {{ table.sql }}.snapshots
        where snapshot_id in (
            select snapshot_id from {{ table.sql }}.history where is_current_ancestor
        )
    ),
    marks as (
        select max(committed_at) as marked_at
        from line
        where get_json_object(summary['dbt'], '$.read') is not null
        {% for mark in var('iceberg_kept_marks', []) %}
        union all
        select max(committed_at) as marked_at from line where summary['{{ mark }}'] is not null
        {% endfor %}
        {% for reader in table.readers %}
        union all
        select line.committed_at as marked_at
        from line
        inner join (
            select max_by({{ read }}, s.committed_at) as read, max(s.committed_at) as read_at
            from {{ reader }}.snapshots as s
            inner join {{ reader }}.history as h on s.snapshot_id = h.snapshot_id
            where h.is_current_ancestor and {{ read }} is not null
        ) as reader on cast(line.snapshot_id as string) = reader.read
        where reader.read_at >= timestamp '{{ forgotten.isoformat() }}'
        {% endfor %}
    ),
    promised as (
        select snapshot_id from (
            select snapshot_id, lead(made_current_at) over (order by made_current_at) as until
            from {{ table.sql }}.history
        ) where until is null or until > timestamp '{{ cut.isoformat() }}'
        union all
        select snapshot_id from {{ table.sql }}.refs
        union all
        (
            select snapshot_id from {{ table.sql }}.snapshots
            order by committed_at desc limit {{ table.policy.keep_snapshots }}
        )
        union all
        {# Iceberg lets a snapshot be up to a minute older than its parent: clocks differ. #}
        select snapshot_id from line
        where committed_at >= (select min(marked_at) from marks) - interval 1 minute
    )
    select snapshot_id
    from {{ table.sql }}.snapshots
    where committed_at <= timestamp '{{ cut.isoformat() }}'
        and snapshot_id not in (select snapshot_id from promised)
        and (
            snapshot_id in (select snapshot_id from line)
            or not exists (
                select 1 from {{ table.sql }}.refs where type = 'BRANCH' and name <> 'main'
            )
        )
{% endmacro %}
