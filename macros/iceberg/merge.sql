{#
    Merge for incremental models on Iceberg. Beyond the adapter's own:
    - a null in the key equals a null, so such a row is updated, where the adapter adds it each time;
    - a column that the model no longer has is left as it is;
    - meta.newest_by names the columns of the total order: a row is updated only by a newer one;
    - meta.gone_when_null names a column: a new row in which it is null says that its key has nothing
      any more, and the row of that key is deleted;
    - meta.prune_by names a column of the key, and for each day that the increment touches the days of
      this column that it can reach, as offsets: only these days are read in the target.
#}
{% macro spark__get_merge_sql(target, source, unique_key, dest_columns, incremental_predicates) %}
    {% set touched = touched_days() %}
    {% set meta = config.get('meta', {}) %}
    {% set predicates = (incremental_predicates or []) | list %}
    {% set keys = [unique_key] if unique_key is string else unique_key %}
    {% for key in keys %}
        {% do predicates.append('DBT_INTERNAL_SOURCE.' ~ key ~ ' <=> DBT_INTERNAL_DEST.' ~ key) %}
    {% endfor %}
    {% for column, offsets in meta.get('prune_by', {}).items() if touched is not none %}
        {% set is_date = dest_columns | selectattr('name', 'equalto', column)
            | map(attribute='data_type') | first == 'date' %}
        {% do predicates.append(
            days_condition('DBT_INTERNAL_DEST.' ~ column, touched, offsets, is_date)
        ) %}
    {% endfor %}
    {% set updated = get_merge_update_columns(
        config.get('merge_update_columns'), config.get('merge_exclude_columns'), dest_columns
    ) or dest_columns | map(attribute='quoted') | list %}
    {% set newest_by, gone = meta.get('newest_by'), meta.get('gone_when_null') %}
    merge into {{ target }} as DBT_INTERNAL_DEST
    using {{ source }} as DBT_INTERNAL_SOURCE
    on {{ predicates | join('\n        and ') }}
    {% if gone -%}
    when matched and DBT_INTERNAL_SOURCE.{{ gone }} is null then delete
    {% endif -%}
    when matched {% if newest_by %} and {{ _is_newer(newest_by) }} {% endif %} then update set
        {% for name in updated -%}
        {{ name }} = DBT_INTERNAL_SOURCE.{{ name }}{{ ',' if not loop.last }}
        {% endfor %}
    when not matched {% if gone %} and DBT_INTERNAL_SOURCE.{{ gone }} is not null {% endif -%}
        then insert *
{% endmacro %}

{# The query of a model without keys that have nothing: a table that is built anew lacks them. #}
{% macro without_gone(sql) %}
    {% set gone = (config.get('meta') or {}).get('gone_when_null') %}
    {{ return(
        'select * from (\n' ~ sql ~ '\n) as with_gone\nwhere ' ~ gone ~ ' is not null' if gone else sql
    ) }}
{% endmacro %}

{% macro _is_newer(columns) %}
    {% set newer = 'DBT_INTERNAL_SOURCE.' ~ columns | join(', DBT_INTERNAL_SOURCE.') %}
    {% set older = 'DBT_INTERNAL_DEST.' ~ columns | join(', DBT_INTERNAL_DEST.') %}
    {{ return('struct(' ~ newer ~ ') > struct(' ~ older ~ ')') }}
{% endmacro %}
