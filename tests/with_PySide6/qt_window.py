"""Show an empty page in Qt's Chromium until this process is ended. Other processes say what it is to load."""

import sys

from PySide6.QtWebEngineWidgets import QWebEngineView
from PySide6.QtWidgets import QApplication

application = QApplication(sys.argv[:1])
view = QWebEngineView()  # a page without a window is not drawn
view.setHtml("")
view.show()
application.exec()
