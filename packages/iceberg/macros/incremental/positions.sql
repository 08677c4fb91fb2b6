{#
    Up to which arrival in a source a model has read it: a scalar subquery with a time, for tests that
    compare the two. It is what the model's newest commit says, whatever became of the rows since.
#}
{% macro read_until(model, source) %}
    {{ return(
        'coalesce(timestamp_micros(cast((' ~ iceberg._read_position(model, source)
        ~ ") as bigint)), timestamp '9999-01-01')"
    ) }}
{% endmacro %}

{# The position of a model in a parent, as text: a scalar query. #}
{% macro _read_position(model, parent) %}
    {{ return(
        "select get_json_object(max_by(s.summary['dbt'], h.made_current_at), '$.read[\\'"
        ~ parent.schema ~ '.' ~ parent.identifier ~ "\\']') from " ~ model ~ '.snapshots as s '
        ~ 'inner join ' ~ model ~ '.history as h on s.snapshot_id = h.snapshot_id '
        ~ "where h.is_current_ancestor and get_json_object(s.summary['dbt'], '$.read') is not null"
    ) }}
{% endmacro %}

{#
    A query that has a row when a model is so many hours behind one of its parents: what has come since
    it last read it is older than that.
#}
{% macro lag_behind(model, parent, hours) %}
    {% if iceberg._arrival_column(parent) %}
        {% set newest_time = 'select max(' ~ iceberg._arrival_column(parent) ~ ') from ' ~ parent %}
        {% set read_time = 'select ' ~ iceberg.read_until(model, parent) %}
    {% else %}
        {% set newest_time = 'select max(made_current_at) from ' ~ parent
            ~ '.history where is_current_ancestor' %}
        {% set read_time = 'select max(made_current_at) from ' ~ parent ~ '.history '
            ~ 'where cast(snapshot_id as string) = (' ~ iceberg._read_position(model, parent) ~ ')' %}
    {% endif %}
    select '{{ model }}' as model, '{{ parent }}' as parent, newest, read_until
    from (select ({{ newest_time }}) as newest, ({{ read_time }}) as read_until)
    where newest > coalesce(read_until, timestamp '1970-01-01') + interval {{ hours }} hours
{% endmacro %}

{% macro _arrival_column(relation) %}
    {% for source in (graph.sources if execute else {}).values()
        if (source.schema, source.identifier) == (relation.schema, relation.identifier) %}
        {{ return(source.config.get('loaded_at_field') or source.get('loaded_at_field')) }}
    {% endfor %}
    {{ return(none) }}
{% endmacro %}
