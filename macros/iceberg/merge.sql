{#
    Merge for incremental models on Iceberg. Beyond the adapter's own:
    - without unique_key it is an error, where the adapter would append;
    - meta.newest_by names the columns of the total order: a row is updated only by a newer one;
    - meta.prune_by maps a time column of the key to the column of the increment (see
      macros/incremental) that falls on the same day: only the days that the increment touches are
      read in the target, and an empty increment commits nothing.
#}
{% macro spark__get_merge_sql(target, source, unique_key, dest_columns, incremental_predicates) %}
    {% if not unique_key %}
        {{ exceptions.raise_compiler_error(
            "model " ~ model.name ~ " merges without a unique_key, which would append every row. "
            ~ "Set unique_key, or incremental_strategy='append'."
        ) }}
    {% endif %}
    {% set keys = [unique_key] if unique_key is string else unique_key %}
    {% set newest_by = config.get('meta', {}).get('newest_by', []) %}
    {% set prune_by = config.get('meta', {}).get('prune_by', {}) %}
    {% set predicates = (incremental_predicates or []) | list %}
    {% for key in keys %}
        {% do predicates.append('DBT_INTERNAL_SOURCE.' ~ key ~ ' = DBT_INTERNAL_DEST.' ~ key) %}
    {% endfor %}
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
        when matched {% if newest_by %} and {{ _is_newer(newest_by) }} {% endif %} then update set *
        when not matched then insert *
    {% endif %}
{% endmacro %}

{% macro _touched_days(column) %}
    {% set found = run_query(
        'select distinct cast(' ~ column ~ ' as date) as day from ' ~ increment_view()
        ~ ' where ' ~ column ~ ' is not null order by day'
    ) %}
    {{ return(found.columns[0].values() | map('string') | list) }}
{% endmacro %}

{# Ranges, since Iceberg skips files by them; a few days each, or the whole span when many. #}
{% macro _on_days(column, days) %}
    {% set spans = [] %}
    {% if days | length <= 31 %}
        {% for day in days %}
            {% do spans.append([day, day]) %}
        {% endfor %}
    {% else %}
        {% do spans.append([days | first, days | last]) %}
    {% endif %}
    {% set ranges = [] %}
    {% for first, last in spans %}
        {% set after = modules.datetime.date.fromisoformat(last)
            + modules.datetime.timedelta(days=1) %}
        {% do ranges.append(
            '(' ~ column ~ " >= timestamp '" ~ first ~ "' and "
            ~ column ~ " < timestamp '" ~ after.isoformat() ~ "')"
        ) %}
    {% endfor %}
    {{ return('(' ~ ranges | join(' or ') ~ ')') }}
{% endmacro %}

{% macro _is_newer(columns) %}
    {% set newer = 'DBT_INTERNAL_SOURCE.' ~ columns | join(', DBT_INTERNAL_SOURCE.') %}
    {% set older = 'DBT_INTERNAL_DEST.' ~ columns | join(', DBT_INTERNAL_DEST.') %}
    {{ return('struct(' ~ newer ~ ') > struct(' ~ older ~ ')') }}
{% endmacro %}
