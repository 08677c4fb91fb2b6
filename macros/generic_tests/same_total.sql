{# A total of the model equals a total of another table: nothing got lost or doubled in between. #}
{% test same_total(model, total, of, of_total, of_rows='true') %}

with totals as (

    select
        (select coalesce({{ total }}, 0) from {{ model }}) as here,
        (select coalesce({{ of_total }}, 0) from {{ of }} where {{ of_rows }}) as there

)

select *
from totals
where here <> there

{% endtest %}
