{#
    The streams whose dead letters and quality are kept in one table for all: of each, the column that
    says when the thing happened which a record tells of, and those that say whose record it is.
    A stream that is added here is in silver.dead_letters and gold.rpt_pipeline_quality.
#}
{% macro streams() %}
    {{ return({
        'health': {
            'event_time': 'end_time',
            'whose': ['user_id', 'device_id', 'sample_id', 'data_type'],
        },
        'sensors': {'event_time': 'measurement_time'},
        'stocks': {'event_time': 'event_time'},
        'traffic': {'event_time': 'measured_at'},
    }) }}
{% endmacro %}
