{#
    Merge for incremental models on Iceberg. Beyond the adapter's own:
    - a null in the key equals a null, so such a row is updated, where the adapter adds it each time;
    - a column that the model no longer has is left as it is;
    - meta.newest_by names the columns of the total order: a row is updated only by a newer one;
    - meta.prune_by maps a time column of the key to the column of the increment (see
      macros/incremental) that falls on the same day: only the days that the increment touches are
      read in the target, and an empty increment commits nothing.
#}
{% macro spark__get_merge_sql(target, source, unique_key, dest_columns, incremental_predicates) %}
    {% set keys = [unique_key] if unique_key is string else unique_key %}
    {% set newest_by = config.get('meta', {}).get('newest_by', []) %}
    {% set prune_by = config.get('meta', {}).get('prune_by', {}) %}
    {% set predicates = (incremental_predicates or []) | list %}
    {% for key in keys %}
        {% do predicates.append('DBT_INTERNAL_SOURCE.' ~ key ~ ' <=> DBT_INTERNAL_DEST.' ~ key) %}
    {% endfor %}
    {% set names = dest_columns | map(attribute='quoted') | list %}
    {% set updated = get_merge_update_columns(
        config.get('merge_update_columns'), config.get('merge_exclude_columns'), dest_columns
    ) or names %}
    {% set untouched = [] %}
    {% for column, in_increment in prune_by.items() %}
        {% set days = _touched_days(in_increment) %}
        {% if days %}
            {% do predicates.append(_on_days('DBT_INTERNAL_DEST.' ~ column, days)) %}
        {% else %}
            {% do untouched.append(column) %}
        {% endif %}
    {% endfor %}
    {% if untouched %}
        select 'nothing new to merge' as outcome
    {% else %}
        merge into {{ target }} as DBT_INTERNAL_DEST
        using {{ source }} as DBT_INTERNAL_SOURCE
        on {{ predicates | join('\n            and ') }}
        when matched {% if newest_by %} and {{ _is_newer(newest_by) }} {% endif %} then update set
            {% for name in updated -%}
            {{ name }} = DBT_INTERNAL_SOURCE.{{ name }}{{ ',' if not loop.last }}
            {% endfor %}
        when not matched then insert *
    {% endif %}
{% endmacro %}

{# In their order; a null among them comes last. #}
{% macro _touched_days(column) %}
    {% set found = run_query(
        'select distinct cast(cast(' ~ column ~ ' as date) as string) as day from '
        ~ increment_view() ~ ' order by day nulls last'
    ) %}
    {{ return(found.columns[0].values() | list) }}
{% endmacro %}

{# Ranges, since Iceberg skips files by them; a few days each, or the whole span when many. #}
{% macro _on_days(column, touched) %}
    {% set days = touched | reject('none') | list %}
    {% set ranges = [] if days == touched else [column ~ ' is null'] %}
    {% if days | length > 31 %}
        {% do ranges.append(_between(column, days | first, days | last)) %}
    {% else %}
        {% for day in days %}
            {% do ranges.append(_between(column, day, day)) %}
        {% endfor %}
    {% endif %}
    {{ return('(' ~ ranges | join(' or ') ~ ')') }}
{% endmacro %}

{% macro _between(column, first_day, last_day) %}
    {% set after = modules.datetime.date.fromisoformat(last_day)
        + modules.datetime.timedelta(days=1) %}
    {{ return(
        '(' ~ column ~ " >= timestamp '" ~ first_day ~ "' and "
        ~ column ~ " < timestamp '" ~ after.isoformat() ~ "')"
    ) }}
{% endmacro %}

{% macro _is_newer(columns) %}
    {% set newer = 'DBT_INTERNAL_SOURCE.' ~ columns | join(', DBT_INTERNAL_SOURCE.') %}
    {% set older = 'DBT_INTERNAL_DEST.' ~ columns | join(', DBT_INTERNAL_DEST.') %}
    {{ return('struct(' ~ newer ~ ') > struct(' ~ older ~ ')') }}
{% endmacro %}
