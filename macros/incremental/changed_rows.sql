{#
    A query for the rows of a silver table that changed since this model last read it, each as it was
    and as it is: the keys in it are the keys to recompute. On the first run, and whenever the
    changes cannot be known, these are all rows.

    The snapshot that this model reads is written into the summary of the commit that it makes, so
    the next run knows where to go on. The mark is set for one commit (macros/iceberg/commit.sql).
#}
{% macro changed_rows(silver, day=none) %}
    {% if execute and load_relation(silver) %}
        {% set newest = _newest_snapshot(silver) %}
        {% do run_query(
            'set `' ~ snapshot_property(read_mark(silver.identifier)) ~ '` = ' ~ newest
        ) %}
    {% endif %}
    {% if newest and is_incremental() %}
        {% do _keep_changes(silver, _last_read_snapshot(silver), newest, day) %}
        select * from {{ increment_view(silver) }}
    {% else %}
        select * from {{ silver }}
    {% endif %}
{% endmacro %}

{% macro _keep_changes(silver, last_read, newest, day) %}
    {% if last_read == newest %}
        {% do _keep_increment(silver, 'select * from ' ~ silver ~ ' where false', day) %}
    {% elif last_read and _is_ancestor(silver, last_read) %}
        {% set changelog = model.name ~ '__changelog__' ~ silver.identifier %}
        {% do run_query(
            "call lake.system.create_changelog_view(table => '" ~ silver
            ~ "', changelog_view => '" ~ changelog
            ~ "', options => map('start-snapshot-id', '" ~ last_read
            ~ "', 'end-snapshot-id', '" ~ newest ~ "'))"
        ) %}
        {% do _keep_increment(
            silver, 'select * from ' ~ changelog ~ ' where ' ~ _not_retired(silver), day
        ) %}
    {% else %}
        {{ log(
            model.name ~ ': what changed in ' ~ silver ~ ' since the last run cannot be known '
            ~ '(rolled back, rebuilt or expired), so all of it is recomputed', info=true
        ) }}
        {% do _keep_increment(silver, 'select * from ' ~ silver, day) %}
    {% endif %}
{% endmacro %}

{# The property of a model's commit that holds the snapshot of `table` which it has read. #}
{% macro read_mark(table) %}
    {{ return('headwater.read.' ~ table) }}
{% endmacro %}

{% macro _newest_snapshot(relation) %}
    {% set found = run_query("select snapshot_id from " ~ relation ~ ".refs where name = 'main'") %}
    {{ return(found.columns[0].values()[0] | string) }}
{% endmacro %}

{% macro _last_read_snapshot(silver) %}
    {% set found = run_query(
        "select s.summary['" ~ read_mark(silver.identifier) ~ "'] from " ~ this ~ ".snapshots as s "
        ~ "inner join " ~ this ~ ".history as h on s.snapshot_id = h.snapshot_id "
        ~ "where h.is_current_ancestor and s.summary['" ~ read_mark(silver.identifier) ~ "'] is not null "
        ~ "order by s.committed_at desc limit 1"
    ) %}
    {{ return(found.columns[0].values()[0] if found.rows else none) }}
{% endmacro %}

{% macro _is_ancestor(relation, snapshot) %}
    {% set found = run_query(
        "select 1 from " ~ relation ~ ".history where is_current_ancestor and snapshot_id = " ~ snapshot
    ) %}
    {{ return(found.rows | length > 0) }}
{% endmacro %}
