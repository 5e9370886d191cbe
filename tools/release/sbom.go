package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/pkg/errors"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
)

// sbom writes the list of the modules that the linker has put into a binary, as SPDX 2.3.
func (r *release) sbom(name, file string) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return errors.Wrapf(err, "reading the modules of %s", name)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return errors.WithStack(err)
	}
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	root := common.MakeDocElementID("", "Package-"+name)
	binary := &v2_3.Package{
		PackageName:             name,
		PackageVersion:          r.version,
		PackageSPDXIdentifier:   root.ElementRefID,
		PackageFileName:         name,
		PackageDownloadLocation: "NOASSERTION",
		PackageLicenseConcluded: "NOASSERTION",
		PackageLicenseDeclared:  "Apache-2.0",
		PackageCopyrightText:    "NOASSERTION",
		PrimaryPackagePurpose:   "APPLICATION",
		PackageChecksums:        []common.Checksum{{Algorithm: common.SHA256, Value: digest}},
	}
	document := &v2_3.Document{
		SPDXVersion:       v2_3.Version,
		DataLicense:       v2_3.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      name + " " + r.version,
		DocumentNamespace: "https://" + info.Main.Path + "/releases/" + r.version + "/" + name + "/" + digest,
		CreationInfo: &v2_3.CreationInfo{
			Created:  r.created.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "latchkey-release"}},
		},
		Packages: []*v2_3.Package{binary},
		Relationships: []*v2_3.Relationship{{
			RefA:         common.MakeDocElementID("", "DOCUMENT"),
			RefB:         root,
			Relationship: common.TypeRelationshipDescribe,
		}},
	}
	modules := append([]*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}, info.Deps...)
	for _, module := range modules {
		if module.Replace != nil {
			module = module.Replace
		}
		p, err := packageOf(module)
		if err != nil {
			return err
		}
		document.Packages = append(document.Packages, p)
		document.Relationships = append(document.Relationships, &v2_3.Relationship{
			RefA:         root,
			RefB:         common.MakeDocElementID("", string(p.PackageSPDXIdentifier)),
			Relationship: common.TypeRelationshipDependsOn,
		})
	}
	out, err := os.Create(filepath.Join(r.out, name+".spdx.json"))
	if err != nil {
		return errors.WithStack(err)
	}
	defer out.Close()
	if err := spdxjson.Write(document, out, spdxjson.Indent("  ")); err != nil {
		return errors.Wrapf(err, "writing the SBOM of %s", name)
	}
	return errors.WithStack(out.Close())
}

// packageOf returns the package of a module. Its checksum is the module's own, from go.sum.
func packageOf(module *debug.Module) (*v2_3.Package, error) {
	id := strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '.' {
			return c
		}
		return '-'
	}, module.Path+"-"+module.Version)
	p := &v2_3.Package{
		PackageName:             module.Path,
		PackageVersion:          module.Version,
		PackageSPDXIdentifier:   common.ElementID("Package-" + id),
		PackageDownloadLocation: "NOASSERTION",
		PackageLicenseConcluded: "NOASSERTION",
		PackageLicenseDeclared:  "NOASSERTION",
		PackageCopyrightText:    "NOASSERTION",
		PrimaryPackagePurpose:   "LIBRARY",
		PackageExternalReferences: []*v2_3.PackageExternalReference{{
			Category: "PACKAGE-MANAGER",
			RefType:  "purl",
			Locator:  "pkg:golang/" + module.Path + "@" + module.Version,
		}},
	}
	if hash, ok := strings.CutPrefix(module.Sum, "h1:"); ok {
		sum, err := base64.StdEncoding.DecodeString(hash)
		if err != nil {
			return nil, errors.Wrapf(err, "the checksum of %s", module.Path)
		}
		p.PackageComment = "SHA-256 of the module's file list (h1 of go.sum): " + hex.EncodeToString(sum)
	}
	return p, nil
}
