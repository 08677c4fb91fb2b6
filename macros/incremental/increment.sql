{#
    The increment of a model as its source has it, before the model's own logic: a temporary view of
    the model's session, from which the merge learns cheaply which days it touches.
#}
{% macro increment_view() %}
    {{ return(model.name ~ '__increment') }}
{% endmacro %}

{% macro _keep_increment(query) %}
    {% do run_query('create or replace temporary view ' ~ increment_view() ~ ' as ' ~ query) %}
{% endmacro %}
