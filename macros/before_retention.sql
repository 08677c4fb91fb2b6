{#
    The offsets that go with the rows of a bronze table, in the table's properties: whoever expires every
    marked snapshot later, the stream must not read these records again (ingestion/origin.py).
#}
{% macro default__before_retention(table, condition) %}
    {% if table.is_source %}
        {% set retired = fromjson(table.properties.get('headwater.retired', '{}')) %}
        {% set newest = run_query(
            "select concat('= ', _kafka_topic) as topic, cast(_kafka_partition as int) as number, "
            ~ 'max(_kafka_offset) + 1 as next_offset from ' ~ table.sql
            ~ ' where ' ~ condition ~ ' group by _kafka_topic, _kafka_partition'
        ) %}
        {% for topic, number, next_offset in newest.rows %}
            {% set known = retired.setdefault(topic[2:], {}) %}
            {% set number = number | int | string %}
            {% do known.update({number: [known.get(number, 0), next_offset | int] | max}) %}
        {% endfor %}
        {% do run_query(
            'alter table ' ~ table.sql ~ " set tblproperties ('headwater.retired' = '"
            ~ tojson(retired) ~ "')"
        ) %}
    {% endif %}
{% endmacro %}
