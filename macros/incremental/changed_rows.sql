{#
    A query for the rows of a silver table that changed since this model last read it, each as it was
    and as it is: the keys in it are the keys to recompute. On the first run, and whenever the
    changes cannot be known, these are all rows.

    The snapshot that this model reads is written into the summary of the commit that it makes, so
    the next run knows where to go on. The mark is set for one commit (macros/iceberg/commit.sql).
#}
{% macro changed_rows(silver, day=none) %}
    {% if execute and load_relation(silver) %}
        {% set known = _snapshots(silver) %}
        {% do run_query(
            'set `' ~ snapshot_property(read_mark(silver.identifier)) ~ '` = ' ~ known.newest
        ) %}
    {% endif %}
    {% if known and is_incremental() %}
        {% do _keep_changes(silver, known, day) %}
        select * from {{ increment_view(silver) }}
    {% else %}
        select * from {{ silver }}
    {% endif %}
{% endmacro %}

{% macro _keep_changes(silver, known, day) %}
    {% if known.last_read == known.newest %}
        {% do _keep_increment(silver, 'select * from ' ~ silver ~ ' where false', day) %}
    {% elif known.last_read in known.ancestors %}
        {% set changelog = model.name ~ '__changelog__' ~ silver.identifier %}
        {% do run_query(
            "call lake.system.create_changelog_view(table => '" ~ silver
            ~ "', changelog_view => '" ~ changelog
            ~ "', options => map('start-snapshot-id', '" ~ known.last_read
            ~ "', 'end-snapshot-id', '" ~ known.newest ~ "'))"
        ) %}
        {% do _keep_increment(
            silver,
            'select * from ' ~ changelog ~ ' where ' ~ _not_retired(known.retention_marks),
            day
        ) %}
    {% else %}
        {% do _keep_increment(silver, 'select * from ' ~ silver, day) %}
        {% set is_replaced = _may_be_replaced(known) %}
        {% if is_replaced %}
            {% do run_query('set `' ~ _whole_setting() ~ '` = true') %}
        {% endif %}
        {{ log(
            model.name ~ ': what changed in ' ~ silver ~ ' since the last run cannot be known '
            ~ '(rolled back, rebuilt or expired), so all of it is recomputed'
            ~ ('' if is_replaced else '; rows for which nothing is there any more stay until '
                ~ 'dbt run --full-refresh --select ' ~ model.name), info=true
        ) }}
    {% endif %}
{% endmacro %}

{#
    Whether all that this model can be computed from is still there. Where retention removes rows of
    any table that it reads, what was made of them stays. An ephemeral model is part of the compiled
    query only, which is the increment's.
#}
{% macro _may_be_replaced(known) %}
    {% for parent in model.depends_on.nodes if parent in graph.nodes %}
        {% set config = graph.nodes[parent].config %}
        {% if config.materialized == 'ephemeral' or (config.meta or {}).get('retention') %}
            {{ return(false) }}
        {% endif %}
    {% endfor %}
    {{ return(not known.retention_marks) }}
{% endmacro %}

{# Whether an increment of this model asked to have the whole of it recomputed. #}
{% macro is_recomputed_whole() %}
    {{ return(run_query('set `' ~ _whole_setting() ~ '`').rows[0][1] == 'true') }}
{% endmacro %}

{% macro _whole_setting() %}
    {{ return(_increment_setting('whole', this.identifier)) }}
{% endmacro %}

{# The query of this model as on its first run: for all rows, and blind to its own table. #}
{% macro whole_query() %}
    {% do model.config.update({'materialized': 'table'}) %}  {# is_incremental() looks there #}
    {{ return(render(model.raw_code)) }}
{% endmacro %}

{# The property of a model's commit that holds the snapshot of `table` which it has read. #}
{% macro read_mark(table) %}
    {{ return('headwater.read.' ~ table) }}
{% endmacro %}

{#
    What the metadata of `silver` and of this model's own table tell, in one statement: the newest
    snapshot of `silver`, its ancestors, the marks of its retention, and the snapshot of it that this
    model has last read. Snapshots that were rolled back do not count.
#}
{% macro _snapshots(silver) %}
    {% set marks = {silver: 'headwater.retention'} %}
    {% if is_incremental() %}
        {% do marks.update({this: read_mark(silver.identifier)}) %}
    {% endif %}
    {% set parts = [] %}
    {% for relation, mark in marks.items() %}
        {# Letters before the ids: dbt would make rounded numbers of them. #}
        {% do parts.append(
            "select '" ~ relation ~ "' as relation, concat('s', snapshot_id) as snapshot, "
            ~ "concat('s', parent_id) as parent, summary['" ~ mark ~ "'] as mark from "
            ~ relation ~ '.snapshots union all '
            ~ "select '" ~ relation ~ "', 'main', concat('s', snapshot_id), null from "
            ~ relation ~ ".refs where name = 'main'"
        ) %}
    {% endfor %}
    {% set parents, said = {}, {} %}
    {% for relation, snapshot, parent, mark in run_query(parts | join(' union all ')).rows %}
        {% do parents.setdefault(relation, {}).update({snapshot: parent}) %}
        {% do said.setdefault(relation, {}).update({snapshot: mark}) %}
    {% endfor %}
    {% set ancestors = _walk(parents[silver | string]) %}
    {% set own_marks = [] %}
    {% for snapshot in _walk(parents.get(this | string, {})) if said[this | string].get(snapshot) %}
        {% do own_marks.append(said[this | string][snapshot] | string) %}
    {% endfor %}
    {{ return({
        'newest': ancestors[0][1:],
        'ancestors': ancestors | map('replace', 's', '') | list,
        'retention_marks': said[silver | string].values() | select | list,
        'last_read': own_marks | first if own_marks else none,
    }) }}
{% endmacro %}

{# The snapshots of a table from its newest one back, by the parent of each. #}
{% macro _walk(parents) %}
    {% set state = namespace(at=parents.get('main')) %}
    {% set found = [] %}
    {% for _ in parents if state.at in parents %}
        {% do found.append(state.at) %}
        {% set state.at = parents[state.at] %}
    {% endfor %}
    {{ return(found) }}
{% endmacro %}
