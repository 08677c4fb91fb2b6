{# A package may not replace dbt's own materializations; the project says that it uses these. #}
{% materialization incremental, adapter='spark', supported_languages=['sql'] %}
    {{ return(iceberg.materialization_incremental_spark()) }}
{% endmaterialization %}

{% materialization table, adapter='spark', supported_languages=['sql'] %}
    {{ return(iceberg.materialization_table_spark()) }}
{% endmaterialization %}

{% materialization snapshot, adapter='spark' %}
    {{ return(iceberg.materialization_snapshot_spark()) }}
{% endmaterialization %}
