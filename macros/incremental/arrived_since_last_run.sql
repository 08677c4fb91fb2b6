{#
    The condition that picks the rows of a bronze table which this model has not read yet.

    Both ends are literals, known when the query is planned, so Iceberg skips every older file. The
    upper end keeps the increment the same however often Spark reads it while ingestion goes on.
#}
{% macro arrived_since_last_run(bronze, day=none, own_rows='true', only='true') %}
    {% if execute and is_incremental() %}
        {{ return(note_arrivals(bronze, day, own_rows, only)) }}
    {% endif %}
    {{ return('true') }}
{% endmacro %}

{#
    The condition for all rows of a bronze table up to the end of this model's increment, on the days
    that the increments touch: for models that count whole days anew. What arrives later belongs to
    the next run. Call note_arrivals for each table of the model first.
#}
{% macro arrived_on_touched_days(bronze, day) %}
    {% if execute and is_incremental() %}
        {% set until = run_query('set `' ~ _until_setting(bronze) ~ '`').rows[0][1] %}
        {{ return('_ingested_at <= ' ~ until ~ ' and ' ~ on_touched_days(day)) }}
    {% endif %}
    {{ return('true') }}
{% endmacro %}

{# Take up what arrived since the last run as an increment of this model; the condition for it. #}
{% macro note_arrivals(bronze, day=none, own_rows='true', only='true') %}
    {% if execute and is_incremental() %}
        {% set until = _newest_arrival(bronze) %}
        {% set condition = '_ingested_at > ' ~ _newest_arrival(this, own_rows)
            ~ ' and _ingested_at <= ' ~ until %}
        {% do run_query('set `' ~ _until_setting(bronze) ~ '` = ' ~ until) %}
        {% do _keep_increment(
            bronze, 'select * from ' ~ bronze ~ ' where ' ~ condition ~ ' and ' ~ only, day
        ) %}
        {{ return(condition) }}
    {% endif %}
{% endmacro %}

{% macro _newest_arrival(relation, condition='true') %}
    {{ return(_newest(relation, '_ingested_at', condition)) }}
{% endmacro %}

{% macro _until_setting(bronze) %}
    {{ return(_increment_setting('until', bronze.identifier)) }}
{% endmacro %}
