{# What changes slowly of a sensor; its readings have a table of their own. #}
{% snapshot dim_sensors_history %}

select
    sensor_id,
    site,
    room,
    upper_limit
from {{ ref('dim_sensors') }}

{% endsnapshot %}
