package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta/table"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Column is a column of the tables that kubectl shows.
type Column[T runtime.Object] struct {
	// Name is the head of the column, as in "State".
	Name string
	// Type is an OpenAPI type: string (the default), integer, number, boolean or date. The cells of
	// a date are strings, such as "5d".
	Type string
	// Description of the column.
	Description string
	// Wide columns are shown with "-o wide" only.
	Wide bool
	// Cell returns the cell of an object: a string, an int64, a float64, a bool, or nil for nothing.
	Cell func(T) any
}

// tableConvertor makes tables.
type tableConvertor struct {
	columns []metav1.TableColumnDefinition
	cells   func(object runtime.Object, name, age string) []any
}

// newTable returns the tables with the name first, then the columns, then the age.
func newTable[T runtime.Object](columns []Column[T]) tableConvertor {
	descriptions := metav1.ObjectMeta{}.SwaggerDoc()
	definitions := []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: descriptions["name"]},
	}
	for _, column := range columns {
		definition := metav1.TableColumnDefinition{Name: column.Name, Type: column.Type, Description: column.Description}
		if definition.Type == "" {
			definition.Type = "string"
		}
		if column.Wide {
			definition.Priority = 1
		}
		definitions = append(definitions, definition)
	}
	definitions = append(definitions, metav1.TableColumnDefinition{
		Name:        "Age",
		Type:        "string",
		Description: descriptions["creationTimestamp"],
	})
	return tableConvertor{
		columns: definitions,
		cells: func(object runtime.Object, name, age string) []any {
			cells := []any{name}
			for _, column := range columns {
				var cell any
				if name != "" { // the object of a bookmark is empty
					cell = column.Cell(object.(T))
				}
				cells = append(cells, cell)
			}
			return append(cells, age)
		},
	}
}

// convert returns the table of an object or a list.
func (t tableConvertor) convert(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	row := func(object runtime.Object, _ metav1.Object, name, age string) ([]any, error) {
		return t.cells(object, name, age), nil
	}
	rows, err := table.MetaToTableRow(object, row)
	if err != nil {
		return nil, err
	}
	result := &metav1.Table{Rows: rows}
	if list, ok := object.(metav1.ListInterface); ok {
		result.ResourceVersion, result.Continue = list.GetResourceVersion(), list.GetContinue()
		result.RemainingItemCount = list.GetRemainingItemCount()
	} else if single, ok := object.(metav1.Object); ok {
		result.ResourceVersion = single.GetResourceVersion()
	}
	if requested, ok := options.(*metav1.TableOptions); !ok || !requested.NoHeaders {
		result.ColumnDefinitions = t.columns
	}
	return result, nil
}
