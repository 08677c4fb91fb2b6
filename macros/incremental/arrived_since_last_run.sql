{#
    The condition that picks the rows of a bronze table which this model has not read yet.

    Both ends are literals, known when the query is planned, so Iceberg skips every older file. The
    upper end keeps the increment the same however often Spark reads it while ingestion goes on.
#}
{% macro arrived_since_last_run(bronze) %}
    {% if execute and is_incremental() %}
        {% set condition = '_ingested_at > ' ~ _newest_arrival(this)
            ~ ' and _ingested_at <= ' ~ _newest_arrival(bronze) %}
        {% do _keep_increment('select * from ' ~ bronze ~ ' where ' ~ condition) %}
        {{ condition }}
    {% else %}
        true
    {% endif %}
{% endmacro %}

{# Iceberg answers this from its metadata; no row is read. #}
{% macro _newest_arrival(relation) %}
    {% set found = run_query('select cast(max(_ingested_at) as string) from ' ~ relation) %}
    {{ return("timestamp '" ~ (found.columns[0].values()[0] or '1970-01-01') ~ "'") }}
{% endmacro %}
